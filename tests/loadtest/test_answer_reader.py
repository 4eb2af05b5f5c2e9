"""An answer is read alike however it is cut, and one that is not whole is never taken for one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.answer_reader import AnswerReader

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
USAGE = {
    "choices": [],
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 4},
    },
}


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(document: object, end: str = "\n\n") -> bytes:
    text = document if isinstance(document, str) else json.dumps(document)
    return chunk(f"data: {text}{end}".encode())


def delta(**fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields}]}


ROLE = event(delta(role="assistant", content=""))
A, B = event(delta(content="a")), event(delta(content="ü"))
DONE = event("[DONE]")
WHOLE = [HEAD, ROLE, A, B, event(USAGE), DONE + LAST]


def read(*parts: bytes, lost: bool = False) -> AnswerReader:
    """Part n comes at instant n + 1."""
    reader = AnswerReader(keep_text=True)
    for index, part in enumerate(parts):
        reader.feed(part, float(index + 1))
    if lost:
        reader.lost()
    return reader


def test_a_whole_answer() -> None:
    reader = read(*WHOLE)
    assert reader.complete
    assert reader.keep_alive
    assert (reader.problem, reader.status, reader.text) == ("", 200, "aü")
    assert (reader.prompt_tokens, reader.cached_tokens, reader.output_tokens) == (9, 4, 3)


def test_the_role_is_no_content() -> None:
    reader = read(*WHOLE)
    assert (reader.pieces, reader.first_at, reader.last_at, reader.gaps) == (2, 3.0, 4.0, [1.0])


@given(st.lists(st.integers(1, 40), max_size=60))
def test_it_is_read_alike_however_it_is_cut(sizes: list[int]) -> None:
    data, parts = b"".join(WHOLE), []
    for size in sizes:
        parts.append(data[:size])
        data = data[size:]
    reader = read(*filter(None, [*parts, data]))
    assert (reader.complete, reader.problem, reader.text) == (True, "", "aü")
    assert (reader.pieces, reader.output_tokens) == (2, 3)


@pytest.mark.parametrize(
    "document",
    [
        delta(reasoning="hm"),
        delta(reasoning_content="hm"),
        delta(tool_calls=[{"index": 0, "function": {"name": "f"}}]),
        {"choices": [{"index": 0, "text": "hm"}]},
    ],
)
def test_reasoning_calls_and_text_are_content(document: object) -> None:
    assert read(HEAD, event(document), DONE + LAST).pieces == 1


def test_comments_and_other_line_ends() -> None:
    mixed = chunk(b": keep-alive\n\n: more\ndata: " + json.dumps(delta(content="x")).encode())
    reader = read(HEAD, mixed, chunk(b"\r"), chunk(b"\n\r\n"), event("[DONE]", "\r\n\r\n") + LAST)
    assert (reader.problem, reader.text) == ("", "x")


def test_an_interim_answer_is_passed_over() -> None:
    reader = read(b"HTTP/1.1 102 Processing\r\n\r\n")
    assert not reader.complete
    for part in WHOLE:
        reader.feed(part, 1.0)
    assert (reader.complete, reader.problem, reader.status) == (True, "", 200)


@pytest.mark.parametrize(
    ("parts", "lost", "problem"),
    [
        ([HEAD, A, LAST], False, "truncated"),
        ([HEAD, A], True, "truncated"),
        ([HEAD], True, "truncated"),
        ([], True, "reset"),
        ([b"HTTP/1.1 200"], True, "reset"),
        ([HEAD, ROLE, DONE + LAST], False, "empty"),
        ([HEAD, A, event({"error": {"message": "no"}}), DONE + LAST], False, "error_event"),
        ([HEAD, A, event("{nonsense"), DONE + LAST], False, "protocol"),
        ([b"SSH-2.0-x\r\n"], False, "protocol"),
        ([HEAD, A, b"zz\r\n"], False, "protocol"),
        ([b"HTTP/1.1 429 No\r\ncontent-length: 4\r\n\r\nslow"], False, "http_429"),
        ([b"HTTP/1.1 503 No\r\n\r\ngone"], True, "http_503"),
    ],
)
def test_what_is_not_whole_has_a_kind(parts: list[bytes], lost: bool, problem: str) -> None:
    reader = read(*parts, lost=lost)
    assert reader.complete
    assert reader.problem == problem


def test_a_refusal_is_kept_to_be_shown() -> None:
    reader = read(b"HTTP/1.1 429 No\r\ncontent-length: 4\r\n\r\nslow")
    assert (reader.detail, reader.keep_alive) == ("slow", True)


def test_the_first_problem_stays() -> None:
    reader = read(HEAD, event({"error": {"message": "no"}}), lost=True)
    assert reader.problem == "error_event"


def test_an_answer_that_closes_is_not_kept_alive() -> None:
    head = HEAD.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    assert not read(head, A, DONE + LAST).keep_alive
