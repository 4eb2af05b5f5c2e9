from __future__ import annotations

import pytest
from charges import REQUESTS, STREAMS, TOKENS, plan_of

from ratelimit import answer
from ratelimit.bucket import UNITS
from ratelimit.config import Rule

MINUTE = Rule(name="minute", limit=60)
FAST = Rule(name="fast", unit="total_tokens", limit=6000)
SLOW = Rule(name="slow", unit="output_tokens", limit=600)
PLAN = plan_of(MINUTE, FAST, SLOW)
TOLD = answer.told(PLAN)


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


def test_headers_tell_of_the_tightest_bucket_of_each_kind_and_of_all_rules() -> None:
    fields = dict(answer.headers(TOLD, [59 * UNITS, 700 * UNITS, 570 * UNITS]))
    assert fields == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"59",
        b"x-ratelimit-reset-requests": b"1s",
        b"x-ratelimit-limit-tokens": b"600",
        b"x-ratelimit-remaining-tokens": b"570",
        b"x-ratelimit-reset-tokens": b"3s",
        b"ratelimit-policy": b'"minute";q=60;w=60, "fast";q=6000;qu="tokens";w=60, '
        b'"slow";q=600;qu="output-tokens";w=60',
        b"ratelimit": b'"minute";r=59;t=1, "fast";r=700;t=53, "slow";r=570;t=3',
    }


def test_other_units_and_windows() -> None:
    rules = [
        STREAMS,
        Rule(name="money", unit="cost_units", limit=100, burst=300, window="day"),
        Rule(name="quiet", limit=1, shadow=True),
    ]
    plan = plan_of(*rules)
    fields = answer.headers(answer.told(plan), [2 * UNITS, 299_999_999, -5])
    assert fields == (
        (
            b"ratelimit-policy",
            b'"streams";q=3;qu="concurrent-requests", "money";q=100;qu="cost-units";w=86400',
        ),
        (b"ratelimit", b'"streams";r=2, "money";r=299;t=1'),
    )


def test_rules_in_shadow_are_not_mentioned() -> None:
    plan = plan_of(Rule(name="quiet", limit=1, shadow=True))
    assert answer.headers(answer.told(plan), [0]) == ()


def test_a_debt_leaves_nothing_remaining() -> None:
    fields = dict(answer.headers(TOLD, [60 * UNITS, 6000 * UNITS, -600 * UNITS]))
    assert fields[b"x-ratelimit-remaining-tokens"] == b"0"
    assert fields[b"x-ratelimit-reset-tokens"] == b"2m0s"
    assert fields[b"ratelimit"].endswith(b'"slow";r=0;t=120')


def test_a_refusal_names_the_bucket_that_takes_longest() -> None:
    least, levels = (UNITS, 650 * UNITS, 600 * UNITS), [0, 640 * UNITS, 590 * UNITS]
    index = answer.lacking(PLAN, least, levels)
    assert index == 0
    error = answer.refusal(PLAN, TOLD, least, levels, index)
    assert error.status == 429
    assert error.retry_after_s == 1.0
    assert dict(error.headers)[b"x-ratelimit-remaining-requests"] == b"0"
    # Retry-After must not come before the end of the window that RateLimit tells.
    assert dict(error.headers)[b"ratelimit"] == b'"minute";r=0;t=1'
    assert error.details["limit"] == {
        "rule": "minute",
        "per": ["tenant"],
        "unit": "requests",
        "window": "minute",
        "burst": 60,
        "limit": 60,
    }


def test_the_refusing_bucket_is_shown_even_if_another_is_lower() -> None:
    least, levels = (UNITS, 700 * UNITS, 600 * UNITS), [60 * UNITS, 650 * UNITS, 600 * UNITS]
    index = answer.lacking(PLAN, least, levels)
    error = answer.refusal(PLAN, TOLD, least, levels, index)
    assert error.retry_after_s == 0.5
    assert dict(error.headers)[b"x-ratelimit-limit-tokens"] == b"6000"
    assert "6000 total tokens per minute, 650 left, 700 needed" in error.message
    assert "Try again in 500ms." in error.message


def test_nobody_knows_when_a_stream_ends() -> None:
    plan = plan_of(STREAMS)
    error = answer.refusal(plan, answer.told(plan), (UNITS,), [0], 0)
    assert error.retry_after_s == 1.0
    assert "3 streams at once, 0 left, 1 needed" in error.message
    assert error.details["limit"] == {
        "rule": "streams",
        "per": ["tenant"],
        "unit": "concurrent",
        "limit": 3,
    }


def test_a_shadow_is_never_the_one_that_refused() -> None:
    plan = plan_of(Rule(name="quiet", limit=1, window="day", shadow=True), REQUESTS)
    assert answer.lacking(plan, (UNITS, UNITS), [0, 0]) == 1


def test_what_can_never_pass_is_forbidden() -> None:
    plan = plan_of(TOKENS)
    error = answer.hopeless(plan, 0, 2000)
    assert (error.status, error.reason) == (403, "prompt_exceeds_rate_limit")
    assert error.retry_after_s is None
    assert "2000" in error.message
    assert "never pass" in error.message
    assert error.param == "prompt"
    assert error.details["limit"]["rule"] == "tokens"
