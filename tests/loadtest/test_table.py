"""The table says what was found, and refuses what was not."""

from __future__ import annotations

import pytest
from load_samples import many, record, result

from loadtest.table import aligned, number, render


def test_columns_are_aligned() -> None:
    assert aligned([["a", "b"], ["long", "123"]]) == ["a       b", "long  123"]


@pytest.mark.parametrize(
    ("value", "text"), [(0.123, "0.12"), (9.994, "9.99"), (12.34, "12.3"), (1234.5, "1234")]
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_a_valid_run() -> None:
    said = render(result(many()))
    assert said.splitlines()[0] == "1000 answers, 100 in the warm-up in 10.0 s"
    assert said.splitlines()[-1] == "VALID"
    assert "50.0 [50.0 50.0]" in said
    assert "(< 5000)" in said


def test_failures_are_named_with_an_example() -> None:
    said = render(result([record(1, 3, outcome="http_429", detail="too much")]))
    assert "  1 x http_429: too much" in said
    assert said.splitlines()[-1] == "INVALID: no answer was measured"


def test_an_interrupted_run_says_so() -> None:
    said = render(result(many()[:600], ended_at=1006.0, interrupted=True))
    assert "note: interrupted; the figures are of the first 5.0 s" in said
