from __future__ import annotations

import pytest

from ratelimit import answer
from ratelimit.bucket import UNITS
from ratelimit.config import Rule
from ratelimit.plan import make_plan

PLAN = make_plan(
    [
        Rule(name="minute", requests_per_minute=60, tokens_per_minute=6000),
        Rule(name="tenant", tokens_per_minute=600, per=("tenant",)),
    ],
    "acme",
    "",
    "qwen3",
)


@pytest.mark.parametrize(
    ("microseconds", "expected"),
    [
        (0, b"0s"),
        (1, b"1ms"),
        (16_001, b"17ms"),
        (1_000_000, b"1s"),
        (8_000_001, b"9s"),
        (360_000_000, b"6m0s"),
        (3_661_000_000, b"61m1s"),
    ],
)
def test_spans(microseconds: int, expected: bytes) -> None:
    assert answer.span(microseconds) == expected


def test_headers_tell_of_the_tightest_bucket_of_each_kind() -> None:
    fields = dict(answer.headers(PLAN, [59 * UNITS, 700 * UNITS, 570 * UNITS]))
    assert fields == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"59",
        b"x-ratelimit-reset-requests": b"1s",
        b"x-ratelimit-limit-tokens": b"600",
        b"x-ratelimit-remaining-tokens": b"570",
        b"x-ratelimit-reset-tokens": b"3s",
    }


def test_a_debt_leaves_nothing_remaining() -> None:
    fields = dict(answer.headers(PLAN, [60 * UNITS, 6000 * UNITS, -600 * UNITS]))
    assert fields[b"x-ratelimit-remaining-tokens"] == b"0"
    assert fields[b"x-ratelimit-reset-tokens"] == b"2m0s"


def test_a_refusal_names_the_bucket_that_takes_longest() -> None:
    amounts = (UNITS, 650 * UNITS, 600 * UNITS)
    levels = [0, 640 * UNITS, 590 * UNITS]
    index = answer.lacking(PLAN, amounts, levels)
    assert index == 0
    error = answer.refusal(PLAN, amounts, levels, index)
    assert error.status == 429
    assert error.retry_after_s == 1.0
    assert dict(error.headers)[b"x-ratelimit-remaining-requests"] == b"0"


def test_the_refusing_bucket_is_shown_even_if_another_is_lower() -> None:
    amounts = (UNITS, 700 * UNITS, 600 * UNITS)
    levels = [60 * UNITS, 650 * UNITS, 600 * UNITS]
    index = answer.lacking(PLAN, amounts, levels)
    error = answer.refusal(PLAN, amounts, levels, index)
    assert error.retry_after_s == 0.5
    assert dict(error.headers)[b"x-ratelimit-limit-tokens"] == b"6000"
    assert "650 left, 700 needed" in error.message
    assert "Try again in 500ms." in error.message


def test_what_can_never_pass_has_no_time_to_wait() -> None:
    error = answer.hopeless(PLAN, PLAN.buckets[2], 700)
    assert error.retry_after_s is None
    assert "700" in error.message
    assert "never pass" in error.message
    assert error.param == "prompt"
