"""The page is whole by itself and takes no word of a scenario or a server for markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from load_samples import many, record, result

from loadtest.compare import compare
from loadtest.report import render
from loadtest.report_server import per_second
from loadtest.result import Event, Result, Series, Share


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
    assert "50.0[50.0 50.0]" in words
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
    assert re.search(r"INVALID\s*no answer was measured", words)
    assert "interrupted" in words


def told() -> Result:
    """A run whose server, replicas and happenings are known."""
    found = result(many(timing={"auth": 0.5, "first_token": 40.0}))
    found.happened = [Event(name="replica_down", at_s=4)]
    found.shares = [
        Share(replica="http://a", requests=3, prompt_tokens=8, output_tokens=9, cached_tokens=4),
        Share(replica="http://b", requests=1, prompt_tokens=2, output_tokens=3, cached_tokens=0),
    ]
    found.series = [
        Series(of="process 7", what="rss", unit="bytes", at_s=[0.5, 1.5], values=[1e8, 1.1e8]),
        Series(of="process 7", what="cpu", unit="s", at_s=[0.5, 1.5], values=[1.0, 1.25]),
        Series(of="metrics", what="headrace_tasks", unit="", at_s=[0.5], values=[9]),
    ]
    return found


def test_phases_replicas_and_processes_are_shown() -> None:
    reader = read(told())
    for words in (
        "Where the time to the first token went",
        "first_token",
        "network and all else",
        "http://b",
        "50.0%",
        "Memory (RSS)",
        "headrace_tasks",
        "replica_down",
    ):
        assert words in reader.words, words


def test_a_cpu_clock_is_shown_as_the_part_of_the_time_and_bytes_in_mib() -> None:
    memory, cpu, _ = told().series
    assert per_second(memory, 3) == [pytest.approx(1e8 / 2**20), pytest.approx(1.1e8 / 2**20), None]
    assert per_second(cpu, 2) == [None, pytest.approx(25.0)]


def test_runs_beside_one_another_and_files_that_were_attached() -> None:
    found = told()
    found.about = {"attached": {"headrace.yaml": "listen: <x>"}, "machine": {"cores": 2}}
    reader = Reader()
    reader.feed(render(found, [("Against before", compare(found, found))]))
    assert "Against before" in reader.words
    assert "B / A" in reader.words
    assert "listen: <x>" in reader.words
