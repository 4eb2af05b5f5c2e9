from __future__ import annotations

from dataclasses import dataclass

from proxy.lateness import NEVER_S, Lateness


@dataclass
class Settings:
    after_s: float | None = None
    after_p95_factor: float | None = None


def test_a_fixed_time_but_never_before_it_was_predicted() -> None:
    lateness = Lateness(Settings(after_s=2.0))
    assert lateness.after_s("m", 0.5) == 2.0
    assert lateness.after_s("m", 9.0) == 9.0
    for _ in range(100):
        lateness.observed("m", 50.0)
    assert lateness.after_s("m", 0.5) == 2.0


def test_so_many_times_the_95th_percentile_once_enough_is_known() -> None:
    lateness = Lateness(Settings(after_p95_factor=2.0))
    for number in range(19):
        lateness.observed("m", number / 10)
    assert lateness.after_s("m", 0.5) == NEVER_S
    lateness.observed("m", 1.9)
    assert lateness.after_s("m", 0.5) == 2 * 1.9
    assert lateness.after_s("m", 7.0) == 7.0
    assert lateness.after_s("other", 0.5) == NEVER_S


def test_only_the_latest_count() -> None:
    lateness = Lateness(Settings(after_p95_factor=1.0))
    for _ in range(1000):
        lateness.observed("m", 60.0)
    for _ in range(512):
        lateness.observed("m", 0.25)
    assert lateness.after_s("m", 0.0) == 0.25
