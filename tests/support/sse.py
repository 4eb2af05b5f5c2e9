"""Server-sent events for tests, each with what the gateway must see in it."""

from __future__ import annotations

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


TEXTS = st.sampled_from(
    [
        "hello",
        "",
        "data: [DONE]\n\ndata: [DONE]\n\n",
        '"usage": {"prompt_tokens": 1}, "choices": []',
        '{"error": {"message": "no"}}',
        "\u2028\u2029\u0085 \U0001f600 שלום",
        "\r\n\r\n\r",
        "[DONE]",
        "\\",
    ]
)
ENDINGS = st.sampled_from([b"\n", b"\r\n", b"\r"])
COUNTS = {"prompt_tokens": 7, "total_tokens": 10, "completion_tokens": 3}


def dumps(document: dict[str, Any], *, spaced: bool) -> bytes:
    data = orjson.dumps(document)
    return data.replace(b'":', b'": ') if spaced else data


@st.composite
def data_of_events(draw: st.DrawFn) -> tuple[bytes, str]:
    """The data of one event and its kind."""
    spaced = draw(st.booleans())
    choice = {"index": 0, "delta": {"content": draw(TEXTS)}, "finish_reason": None}
    usage = {**COUNTS, "prompt_tokens_details": {"cached_tokens": 4}}
    kind = draw(st.sampled_from([CONTENT] * 4 + [USAGE, ERROR, DONE]))
    if kind == DONE:
        return b"[DONE]", DONE
    if kind == ERROR:
        return dumps({"error": {"message": draw(TEXTS), "code": 500}}, spaced=spaced), ERROR
    if kind == USAGE:
        documents: list[dict[str, Any]] = [
            {"id": "c", "choices": [], "usage": usage},
            {"usage": usage, "choices": [], "metrics": {"a": 1}},
        ]
        return dumps(draw(st.sampled_from(documents)), spaced=spaced), USAGE
    documents = [
        {"id": "c", "choices": [choice]},
        {"id": "c", "choices": [choice], "usage": None},
        {"id": "c", "choices": [choice], "usage": COUNTS},
        {"id": "c", "choices": [], "usage": None},
        {"id": "c", "choices": [choice], "error": None},
        {"prompt_filter_results": [], "choices": []},
    ]
    return dumps(draw(st.sampled_from(documents)), spaced=spaced), CONTENT


@st.composite
def events(draw: st.DrawFn, endings: st.SearchStrategy[bytes] = ENDINGS) -> Event:
    end = draw(endings)
    if draw(st.integers(0, 5)) == 0:
        raw = draw(st.sampled_from([b": keep-alive", b":", b"retry: 5", b": a%b: b" % end]))
        return Event(raw + end + end, SILENT)
    data, kind = draw(data_of_events())
    field = draw(st.sampled_from([b"data: %b", b"data: %b", b"data:%b"])) % data
    before = draw(st.sampled_from([b"", b"", b"event: a" + end, b"id: 1" + end, b": c" + end]))
    after = draw(st.sampled_from([b"", b"", end + b"id: 1", end + b": data: [DONE]"]))
    return Event(before + field + after + end + end, kind)


def streams(endings: st.SearchStrategy[bytes] = ENDINGS) -> st.SearchStrategy[list[Event]]:
    return st.lists(events(endings), max_size=8)


PLACES = st.one_of(
    st.just(list(range(5000))), st.lists(st.integers(min_value=0, max_value=5000), max_size=12)
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """`data` in pieces, cut where `places` say."""
    edges = sorted({0, len(data), *(place for place in places if place < len(data))})
    return [data[start:end] for start, end in pairwise(edges)]
