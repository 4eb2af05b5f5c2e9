"""Which of several rates was still good."""

from __future__ import annotations

import pytest
from load_samples import many, record, result

from loadtest.sweep import is_good, rates_of, render


def test_rates_rise() -> None:
    assert rates_of("40,10,2.5,10") == [2.5, 10, 40]


@pytest.mark.parametrize("text", ["", "a", "1,,2", "0", "-1", "inf", "nan"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        rates_of(text)


def test_what_is_good() -> None:
    assert is_good(result(many()), None)
    assert is_good(result(many()), 51)
    assert not is_good(result(many()), 49)
    assert not is_good(result(many(), cpu_s=10.5), None)
    assert not is_good(result([]), 51)


def test_some_may_fail() -> None:
    failed = [record(n, 3, outcome="reset") for n in range(20)]
    assert is_good(result(many() + failed[:10]), None)
    assert not is_good(result(many() + failed), None)


def test_the_table() -> None:
    swept = [(90.0, result(many())), (100.0, result(many())), (200.0, result(many(), cpu_s=10.5))]
    said = render(swept, 60).splitlines()
    assert said[1].split() == [
        "90",
        "100.0",
        "500",
        "50.0",
        "50.0",
        "50.0",
        "10.0",
        "0",
        "18%",
        "VALID",
    ]
    assert said[3].split()[-1] == "INVALID"
    assert said[-1] == (
        "highest good rate (VALID, at most 1% failed, ttft p95 at most 60 ms): 100 sessions/s"
    )
    assert render(swept, 5).splitlines()[-1].endswith(": none")
