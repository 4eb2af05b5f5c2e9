from __future__ import annotations

import pytest

from ratelimit.estimate import Estimates


def test_before_anything_was_seen() -> None:
    estimates = Estimates(512, 4096)
    assert estimates.output("m", None) == 512
    assert estimates.output("m", 100) == 100
    assert estimates.tokens("m", 7) == 7


def test_the_mean_length_of_answers_is_learned_by_model() -> None:
    estimates = Estimates(512, 4096)
    for tokens in (100, 300):
        estimates.learn("m", 0, tokens)
    assert 200 <= estimates.output("m", None) <= 203
    assert estimates.output("m", 150) == 150
    assert estimates.output("other", None) == 512
    estimates.learn("long", 0, 1_000_000)
    assert estimates.output("long", None) == 4096


def test_an_answer_without_a_token_is_one_too() -> None:
    estimates = Estimates(512, 4096)
    for _ in range(300):
        estimates.learn("m", 0, 0)
    assert estimates.output("m", None) == 1


@pytest.mark.parametrize("tokens_per_event", [1.0, 2.7, 0.9])
def test_tokens_per_event_are_learned(tokens_per_event: float) -> None:
    estimates = Estimates(512, 4096)
    for events in (10, 50, 200):
        estimates.learn("m", events, round(events * tokens_per_event))
    assert estimates.tokens("m", 100) == pytest.approx(100 * tokens_per_event, rel=0.02)
    assert estimates.tokens("m", 0) == 0


def test_an_event_that_each_answer_has_once_does_not_bend_it() -> None:
    """Such as the one that says why the answer ended, where it holds no token."""
    estimates = Estimates(512, 4096)
    for tokens in (3, 8, 2, 12, 5):
        estimates.learn("m", tokens + 1, tokens)
    assert estimates.tokens("m", 100) == 100


def test_a_slope_that_cannot_be_is_not_believed() -> None:
    estimates = Estimates(512, 4096)
    for events, tokens in ((1, 100), (100, 1), (50, 60)):
        estimates.learn("m", events, tokens)
    assert estimates.tokens("m", 151) == pytest.approx(161, abs=3)


def test_what_is_recent_weighs_more() -> None:
    estimates = Estimates(512, 4096)
    for _ in range(1000):
        estimates.learn("m", 100, 100)
    for _ in range(200):
        estimates.learn("m", 100, 300)
    assert estimates.tokens("m", 100) == pytest.approx(300, rel=0.1)
    assert estimates.output("m", None) == pytest.approx(300, rel=0.1)


def test_answers_in_one_piece_teach_no_events() -> None:
    estimates = Estimates(512, 4096)
    estimates.learn("m", 0, 1000)
    assert estimates.tokens("m", 10) == 10
