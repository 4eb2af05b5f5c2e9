"""What a run tells of the server."""

from __future__ import annotations

from array import array

import msgspec
import pytest

from loadtest.record import Samples, Seen
from loadtest.result import Counts
from loadtest.server_side import cpu_rates, series_of


def counts(answers: int, tokens: int) -> Counts:
    zero = {each.name: 0 for each in msgspec.structs.fields(Counts) if each.type is int}
    zero |= {"ok": answers, "output_tokens": tokens}
    return Counts(errors={}, statuses={}, examples={}, **zero)


def test_cpu_of_the_measured_part_by_answers_and_tokens() -> None:
    clocks = [
        Seen(f"process {n}", "cpu", "s", array("d", [100, 101, 102]), array("d", [1.0, 1.5, 2.5]))
        for n in (1, 2)
    ]
    memory = Seen("process 1", "rss", "bytes", array("d", [100]), array("d", [1e9]))
    series = series_of(Samples(began_at=100.0, seen=[*clocks, memory]))
    assert [each.at_s for each in series] == [[0, 1, 2], [0, 1, 2], [0]]
    assert cpu_rates(series, counts(10, 200), begin_s=1.2) == {
        "server_cpu_us_per_answer": pytest.approx(2e6 / 10),
        "server_cpu_us_per_token": pytest.approx(2e6 / 200),
    }
    assert cpu_rates(series, counts(0, 0), begin_s=1.2) == {}
    assert cpu_rates([series[-1]], counts(10, 200), begin_s=1.2) == {}
