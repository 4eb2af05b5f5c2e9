from __future__ import annotations

import pytest

from core.errors import RequestTimeout
from proxy.config import ListenTimeouts
from proxy.pace import first_look, next_look

TIMEOUTS = ListenTimeouts(body_s=60.0, body_min_rate=1000.0)


def test_the_first_seconds_are_not_judged() -> None:
    assert first_look(100.0, TIMEOUTS) == 105.0
    assert first_look(100.0, ListenTimeouts(body_s=2.0)) == 102.0


def test_a_body_that_flows_is_looked_at_again() -> None:
    assert next_look(100.0, 5000, TIMEOUTS, 105.0) == 106.0
    assert next_look(100.0, 59_600, TIMEOUTS, 159.5) == 160.0


@pytest.mark.parametrize(("received", "now"), [(4999, 105.0), (10_000_000, 160.0)])
def test_a_body_that_is_slow_or_long_on_its_way_is_given_up(received: int, now: float) -> None:
    with pytest.raises(RequestTimeout):
        next_look(100.0, received, TIMEOUTS, now)
