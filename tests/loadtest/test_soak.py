"""Trends of what a server used."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec
import pytest

from loadtest.result import Counts, Series
from loadtest.soak import FLAT, GROWING, UNCLEAR, Soak, _line, judge, render, trend

MIB = 1 << 20
RUN_S = 600.0


def series(value: Callable[[float], float], unit: str = "bytes", until: float = RUN_S) -> Series:
    at_s = [float(at) for at in range(int(until))]
    what = "rss" if unit == "bytes" else "descriptors"
    return Series(of="process 7", what=what, unit=unit, at_s=at_s, values=[value(t) for t in at_s])


def counts(**changes: int) -> Counts:
    zero = {each.name: 0 for each in msgspec.structs.fields(Counts) if each.type is int}
    return Counts(errors={}, statuses={}, examples={}, **(zero | {"ok": 1000} | changes))


def judged(found: Sequence[Series], **changes: int) -> Soak:
    return judge(found, end_s=RUN_S, hour_s=RUN_S, counts=counts(**changes))


def test_noise_about_a_level_is_flat() -> None:
    rng = random.Random(1)
    found = judged([series(lambda at: 100 * MIB + rng.gauss(0, MIB))])
    assert (found.word, found.reasons) == (FLAT, [])


def test_a_leak_within_that_noise_is_found() -> None:
    rng = random.Random(1)
    found = judged([series(lambda at: 100 * MIB + at / RUN_S * 8 * MIB + rng.gauss(0, MIB))])
    assert found.word == GROWING
    (one,) = found.trends
    assert one.low < 8 * MIB < one.high
    assert "rss grows by" in render(found)


def test_what_is_filled_at_the_beginning_is_no_trend() -> None:
    assert judged([series(lambda at: 100 * MIB + min(at, 150) * MIB)]).word == FLAT


def test_a_line_that_cannot_be_told_from_none_is_unclear() -> None:
    rng = random.Random(3)
    found = judged([series(lambda at: 100 * MIB + rng.choice((0, 40)) * MIB)])
    assert found.word == UNCLEAR


def test_an_interval_is_wider_where_neighbours_are_alike() -> None:
    _, alike = _line(([0.0] * 5 + [4.0] * 5) * 2)
    _, apart = _line([0.0, 4.0] * 10)
    assert alike > 1.5 * apart > 0


@pytest.mark.parametrize(("descriptors", "word"), [(1, FLAT), (30, GROWING)])
def test_descriptors_are_counted(descriptors: int, word: str) -> None:
    assert judged([series(lambda at: 50 + at / RUN_S * descriptors, "")]).word == word


def test_growth_is_that_of_an_hour() -> None:
    one = trend(series(lambda at: at * 1000), 0, RUN_S, 3600.0)
    assert one is not None
    assert one.growth == pytest.approx(3600 * 1000, rel=1e-3)


def test_a_process_that_ended_makes_it_unclear() -> None:
    found = judged([series(lambda at: 5.0, until=580)])
    assert found.word == UNCLEAR
    assert "not seen any more after 579 s" in found.reasons[0]


def test_requests_that_were_not_made_or_failed_make_it_unclear() -> None:
    fine = series(lambda at: 5.0)
    assert judged([fine], planned=100, started=90).word == UNCLEAR
    assert judged([fine], failed=100).word == UNCLEAR
    assert judged([fine], planned=100, started=100, failed=1).word == FLAT


def test_too_short_a_time_and_nothing_at_all() -> None:
    assert judged([series(lambda at: 5.0, until=250)]).word == UNCLEAR
    assert judged([]).word == UNCLEAR
