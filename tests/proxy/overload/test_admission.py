from __future__ import annotations

import pytest

from core.errors import Unavailable
from core.metrics import Metrics
from proxy.config import ListenLimits
from proxy.overload.admission import Admission
from proxy.overload.level import Level

LIMITS = ListenLimits(max_requests_in_flight=2, max_body_bytes=50_000, max_buffered_bytes=100_000)


def admission() -> tuple[Admission, Metrics]:
    metrics = Metrics.private()
    return Admission(LIMITS, metrics), metrics


def test_requests_beyond_the_limit_are_refused() -> None:
    made, metrics = admission()
    made.in_flight = 2
    made.check_request()
    made.in_flight = 3
    with pytest.raises(Unavailable) as caught:
        made.check_request()
    assert (caught.value.status, caught.value.reason) == (503, "overloaded")
    assert caught.value.retry_after_s is not None
    assert metrics.value("headrace_requests_shed_total", "in_flight") == 1


def test_those_refused_together_do_not_come_back_together() -> None:
    made, _ = admission()
    made.in_flight = 9
    waits = set()
    for _ in range(6):
        with pytest.raises(Unavailable) as caught:
            made.check_request()
        waits.add(caught.value.retry_after_s)
    assert len(waits) > 1


def test_bodies_beyond_the_limit_are_refused() -> None:
    made, metrics = admission()
    made.hold(100_000)
    made.check_body()
    made.hold(1)
    with pytest.raises(Unavailable):
        made.check_body()
    made.publish()
    assert metrics.value("headrace_buffered_bytes") == 100_001
    made.hold(-100_001)
    made.check_body()
    made.publish()
    assert metrics.value("headrace_buffered_bytes") == 0
    assert metrics.value("headrace_requests_shed_total", "buffered") == 1


@pytest.mark.parametrize("level", Level)
def test_overload_refuses_from_its_level_on(level: Level) -> None:
    made, metrics = admission()
    made.level = level
    for check in (made.check_request, made.check_body):
        if level < Level.REFUSE:
            check()
        else:
            with pytest.raises(Unavailable):
                check()
    shed = metrics.value("headrace_requests_shed_total", "overload")
    assert shed == (2 if level >= Level.REFUSE else 0)


def test_without_a_limit() -> None:
    made = Admission(ListenLimits(), Metrics.private())
    made.in_flight = 1_000_000
    made.check_request()
