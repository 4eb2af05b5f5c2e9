"""Server-sent events for tests, each with what the gateway must see in it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import orjson
from hypothesis import strategies as st

CONTENT, USAGE, ERROR, DONE, SILENT = "content", "usage", "error", "done", "silent"


@dataclass(frozen=True)
class Event:
    """`raw` bytes with the ending; `kind` as above (silent: comments and the like)."""

    raw: bytes
    kind: str


TEXTS = (
    "hello",
    "",
    "data: [DONE]\n\ndata: [DONE]\n\n",
    '"usage": {"prompt_tokens": 1}, "choices": []',
    '{"error": {"message": "no"}}',
    "\u2028\u2029\u0085 \U0001f600 שלום",
    "\r\n\r\n\r",
    "[DONE]",
    "\\",
)
ENDINGS = (b"\n", b"\r\n", b"\r")
COUNTS = {"prompt_tokens": 7, "total_tokens": 10, "completion_tokens": 3}
KINDS = [SILENT, *[CONTENT] * 4, USAGE, ERROR, DONE]


def dumps(document: dict[str, Any], *, spaced: bool) -> bytes:
    data = orjson.dumps(document)
    return data.replace(b'":', b'": ') if spaced else data


def documents(kind: str, text: str) -> list[dict[str, Any]]:
    """What the data of an event of that kind may be."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    usage = {**COUNTS, "prompt_tokens_details": {"cached_tokens": 4}}
    return {
        ERROR: [{"error": {"message": text, "code": 500}}],
        USAGE: [
            {"id": "c", "choices": [], "usage": usage},
            {"usage": usage, "choices": [], "metrics": {"a": 1}},
        ],
        CONTENT: [
            {"id": "c", "choices": [choice]},
            {"id": "c", "choices": [choice], "usage": None},
            {"id": "c", "choices": [choice], "usage": COUNTS},
            {"id": "c", "choices": [], "usage": None},
            {"id": "c", "choices": [choice], "error": None},
            {"prompt_filter_results": [], "choices": []},
        ],
    }[kind]


def data_of(kind: str) -> list[bytes]:
    if kind == DONE:
        return [b"[DONE]"]
    return [
        dumps(document, spaced=spaced)
        for text in TEXTS
        for document in documents(kind, text)
        for spaced in (False, True)
    ]


@functools.cache
def events(kind: str, end: bytes) -> st.SearchStrategy[Event]:
    """One of every event of that kind whose lines end so. All of them are made once: drawing their
    parts one by one would take most of the time of the tests."""
    if kind == SILENT:
        lines = [b": keep-alive", b":", b"retry: 5", b": a%b: b" % end]
    else:
        lines = [
            before + field % data + after
            for data in data_of(kind)
            for field in (b"data: %b", b"data:%b")
            for before in (b"", b"event: a" + end, b"id: 1" + end, b": c" + end)
            for after in (b"", end + b"id: 1", end + b": data: [DONE]")
        ]
    return st.sampled_from([Event(line + end + end, kind) for line in lines])


@st.composite
def any_event(draw: st.DrawFn, endings: tuple[bytes, ...]) -> Event:
    return draw(events(draw(st.sampled_from(KINDS)), draw(st.sampled_from(endings))))


def streams(endings: tuple[bytes, ...] = ENDINGS) -> st.SearchStrategy[list[Event]]:
    return st.lists(any_event(endings), max_size=8)


PLACES = st.one_of(
    st.just(list(range(5000))), st.lists(st.integers(min_value=0, max_value=5000), max_size=12)
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """`data` in pieces, cut where `places` say."""
    edges = sorted({0, len(data), *(place for place in places if place < len(data))})
    return [data[start:end] for start, end in pairwise(edges)]
