from __future__ import annotations

from core.replica import Load
from routing.audit import Audit


def load(running: float, waiting: float, at: float) -> Load:
    return Load(running, waiting, 0.5, at)


def test_three_reports_make_foreign_traffic() -> None:
    audit = Audit()
    for at in (1.0, 2.0):
        audit.take(load(12, 8, at), 10, at)
        assert audit.in_flight == 0
    audit.take(load(12, 8, 2.0), 10, 2.5)  # the same report again
    assert audit.in_flight == 0
    audit.take(load(12, 8, 3.0), 10, 3.0)
    assert (audit.in_flight, audit.waiting) == (10, 8)
    audit.take(load(11, 0, 4.0), 10, 4.0)
    assert (audit.in_flight, audit.waiting) == (0, 0)


def test_small_differences_are_lateness() -> None:
    audit = Audit()
    for at in range(10):
        audit.take(load(12, 0, float(at)), 10, float(at))
    assert audit.in_flight == 0


def test_stale_and_missing_reports_count_for_nothing() -> None:
    audit = Audit()
    for at in (1.0, 2.0, 3.0):
        audit.take(load(50, 50, at), 0, at)
    assert audit.in_flight == 100
    audit.take(load(50, 50, 3.0), 0, 9.0)
    assert audit.in_flight == 100
    audit.take(load(50, 50, 3.0), 0, 14.0)
    assert audit.in_flight == 0
    for at in (21.0, 22.0, 23.0):
        audit.take(load(50, 50, at), 0, at)
    assert audit.in_flight == 100
    audit.take(None, 0, 24.0)
    assert audit.in_flight == 0
