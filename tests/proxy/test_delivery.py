"""What came of a delivery: the replica's counts, as far as they can be believed."""

from __future__ import annotations

from typing import Any

import pytest

from core.prompt import Prompt
from proxy.delivery import Delivery


class Estimates:
    """Two tokens an event; what was learned."""

    def __init__(self) -> None:
        self.learned: list[tuple[str, int, int]] = []

    def learn(self, model: str, events: int, tokens: int) -> None:
        self.learned.append((model, events, tokens))

    def tokens(self, model: str, events: int) -> int:
        return 2 * events


def delivery(**changes: Any) -> Delivery:
    given: dict[str, Any] = {
        "path": b"/v1/completions",
        "headers": [],
        "body": b"{}",
        "prompt": Prompt("m", 10, 40, True, (), 64),
        "max_output_tokens": None,
        "stream": True,
        "strip_usage": False,
        "own_headers": [],
    }
    return Delivery(**{**given, **changes})


def test_without_usage_the_events_are_counted_but_those_without_content() -> None:
    made, estimates = delivery(empty_events=1), Estimates()
    made.take_stock(None, 6, estimates)
    assert (made.prompt_tokens, made.output_tokens, made.cached_tokens) == (10, 10, None)
    assert not made.usage_known
    assert estimates.learned == []


def test_usage_is_taken_and_learned_from() -> None:
    made, estimates = delivery(), Estimates()
    usage = {"prompt_tokens": 12, "completion_tokens": 7}
    usage |= {"prompt_tokens_details": {"cached_tokens": 100}}  # type: ignore[dict-item]
    made.take_stock(usage, 5, estimates)
    assert (made.prompt_tokens, made.output_tokens, made.cached_tokens) == (12, 7, 12)
    assert made.usage_known
    assert estimates.learned == [("m", 5, 7)]


@pytest.mark.parametrize("count", [-1, True, "7", 1.5, 2**40, None])
def test_counts_that_cannot_be_are_no_counts(count: Any) -> None:
    made = delivery()
    made.take_stock({"completion_tokens": count, "prompt_tokens": count}, 3, Estimates())
    assert (made.prompt_tokens, made.output_tokens, made.usage_known) == (10, 6, False)
