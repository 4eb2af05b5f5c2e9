"""Every policy plays a small trace to its end."""

from __future__ import annotations

import pytest

from core.errors import ConfigError
from routing.simulator.policies import NAMES, check, own_config
from routing.simulator.study import Setup, simulate
from routing.simulator.trace import sample
from routing.simulator.world import Faults

TRACE = sample(sessions=12)


@pytest.mark.parametrize("name", NAMES)
def test_every_request_is_answered(name: str) -> None:
    figures = simulate(TRACE, Setup(replicas=3), name, 1).figures
    assert (figures["failed"], figures["shed"]) == (0.0, 0.0)
    assert 0.0 <= figures["hit"] <= TRACE.ceiling + 1e-9
    assert figures["ttft_p50"] > 0.012


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_run(name: str) -> None:
    setup = Setup(replicas=3, speed=2.0)
    assert simulate(TRACE, setup, name, 5) == simulate(TRACE, setup, name, 5)


@pytest.mark.parametrize("name", NAMES)
def test_prompts_survive_a_crash(name: str) -> None:
    setup = Setup(replicas=3, speed=4.0, faults=Faults(crash=0.5, away_s=2.0))
    figures = simulate(TRACE, setup, name, 1).figures
    assert figures["failed"] < 0.2
    assert figures["shed"] == 0.0


def test_settings_of_our_own_policy() -> None:
    config = own_config("prefix_affinity:decode_weight=0.3:tie_window_s=0:admission.hold_s=2", 512)
    assert config.admission.hold_s == 2.0
    assert (config.decode_weight, config.tie_window_s, config.block_tokens) == (0.3, 0.0, 512)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lpwll", "did you mean `lpwl`"),
        ("lpwl:x=1", "others take hold_s"),
        ("prefix_affinity:decode_weigt=1", "decode_weigt"),
        ("prefix_affinity:decode_weight=-1", "between 0 and 10"),
    ],
)
def test_what_is_no_policy(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check(name)


def test_wrong_constants_are_what_the_router_begins_with() -> None:
    right, wrong = own_config("prefix_affinity", 64), own_config("prefix_affinity", 64, 2.0)
    assert wrong.priors.prefill_tokens_per_second == 2 * right.priors.prefill_tokens_per_second
