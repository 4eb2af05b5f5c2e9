"""The page is whole by itself and takes no word of a scenario or a server for markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from load_samples import many, record, result

from loadtest.report import render
from loadtest.result import Result


class Reader(HTMLParser):
    """Notes elements and where they point; what is opened must be closed."""

    VOID = ("meta", "line", "circle", "rect", "path")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.points: list[str] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.points += [name for name, _ in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def read(found: Result) -> Reader:
    reader = Reader()
    reader.feed(render(found))
    reader.close()
    assert reader.open == []
    return reader


def test_the_page_is_whole_and_fetches_nothing() -> None:
    found = result(many())
    reader = read(found)
    assert reader.points == []
    assert "script" not in reader.seen
    assert "url(" not in render(found)
    assert reader.seen.count("svg") == 6
    assert "VALID" in reader.words
    assert "prefers-color-scheme: dark" in reader.words


def test_percentiles_are_shown_with_their_intervals() -> None:
    words = read(result(many())).words
    assert "50.0 [50.0 50.0]" in words
    assert re.search(r"ttft.*first content - due time", words, re.S)


def test_what_is_said_is_no_markup() -> None:
    found = result([*many(), record(1, 3, outcome="http_500", detail="<script>alert(1)</script>")])
    found.about = {"scenario": {"name": "<b>", "description": "a & b"}}
    found.by_kind = {"<i>": found.metrics}
    reader = read(found)
    assert {"script", "b", "i"}.isdisjoint(reader.seen)
    assert "alert(1)" in reader.words


def test_a_run_without_answers_has_a_page() -> None:
    words = read(result([], interrupted=True)).words
    assert "INVALID: no answer was measured" in words
    assert "interrupted" in words
