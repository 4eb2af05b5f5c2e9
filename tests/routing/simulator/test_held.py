"""Others' policies behind a queue."""

from __future__ import annotations

import pytest

from core.errors import ConfigError
from routing.simulator.engine import EngineModel, Job
from routing.simulator.held import DEADLINE_S
from routing.simulator.policies import check, make
from routing.simulator.trace import Request
from routing.simulator.world import Faults, World


def played(policy: str, requests: list[Request]) -> list[Job]:
    world = World(requests, 2, EngineModel(), 64, faults=Faults(), seed=1)
    return world.run(make(policy, world))


def test_a_flood_waits_and_who_waits_too_long_is_refused() -> None:
    flood = [Request(n, n / 1000, 16_000, 5, (n,)) for n in range(60)]
    at_once = played("least_load", flood)
    held = played("least_load:hold_s=1", flood)
    assert not any(job.shed for job in at_once)
    shed = [job for job in held if job.shed]
    assert 0 < len(shed) < 60
    for job in held:
        assert job.shed == (job.ended_at is None)
        if not job.shed:
            assert job.sent_at - job.offered_at <= DEADLINE_S + 0.1


def test_below_its_bound_it_changes_nothing() -> None:
    few = [Request(n, float(n), 1000, 5, (n,)) for n in range(8)]
    times = [
        [job.first_at for job in played(name, few)]
        for name in ("llmd_sticky", "llmd_sticky:hold_s=1.5")
    ]
    assert times[0] == times[1]


@pytest.mark.parametrize("name", ["lpwl:hold_s=0", "lpwl:hold_s=x", "lpwl:hold=1"])
def test_other_settings_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="hold_s=SECONDS"):
        check(name)


def test_a_hold_is_a_setting_of_others() -> None:
    check("lpwl:hold_s=1.5")
