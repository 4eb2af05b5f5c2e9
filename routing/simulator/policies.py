"""The policies by name. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from core.describe import did_you_mean
from core.errors import ConfigError
from routing.config import Priors, RoutingConfig
from routing.simulator.gateway import OwnPolicy
from routing.simulator.held import Held
from routing.simulator.peers import (
    Aibrix,
    Chwbl,
    LeastLoad,
    Picking,
    PowerOfTwo,
    RoundRobin,
    SglangCli,
    SglangLibrary,
    StackLoadAware,
    StackPrefixAware,
)
from routing.simulator.peers_events import (
    Dynamo,
    LeastPendingWork,
    LlmdPrecise,
    LlmdSticky,
    Oracle,
)
from routing.simulator.world import Policy, World

OWN = "prefix_affinity"
ORACLE = "oracle"
_PEERS: Mapping[str, Callable[[World], Picking]] = {
    "sglang_cli": SglangCli,
    "sglang_lib": SglangLibrary,
    "production_stack_prefixaware": StackPrefixAware,
    "production_stack_loadaware": StackLoadAware,
    "llmd_precise": LlmdPrecise,
    "llmd_sticky": LlmdSticky,
    "dynamo": Dynamo,
    "aibrix": Aibrix,
    "chwbl": Chwbl,
    "lpwl": LeastPendingWork,
    "least_load": LeastLoad,
    "round_robin": RoundRobin,
    "p2c": PowerOfTwo,
    ORACLE: Oracle,
}
NAMES = (OWN, *_PEERS)


def own_config(name: str, block_tokens: int, constants: float = 1.0) -> RoutingConfig:
    """The routing section that `prefix_affinity` or `prefix_affinity:setting=value:...` stands
    for; `admission.hold_s` is a setting's name, too. Raises ConfigError."""
    settings: dict[str, Any] = {"block_tokens": max(block_tokens, 16)}
    for setting in name.split(":")[1:]:
        key, _, text = setting.partition("=")
        try:
            value = msgspec.json.decode(text)
        except msgspec.DecodeError:
            value = text
        section, _, inner = key.partition(".")
        if inner:
            settings.setdefault(section, {})[inner] = value
        else:
            settings[key] = value
    priors = Priors()
    wrong = Priors(
        prefill_tokens_per_second=priors.prefill_tokens_per_second * constants,
        decode_seconds_per_sequence=priors.decode_seconds_per_sequence / constants,
        decode_seconds_per_token=priors.decode_seconds_per_token / constants,
        output_tokens=priors.output_tokens,
    )
    try:
        return msgspec.convert({"priors": msgspec.to_builtins(wrong), **settings}, RoutingConfig)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"--policies: {name}: {error}") from error


def check(name: str) -> None:
    """Raises ConfigError if no policy is named so."""
    own, _, settings = name.partition(":")
    if own == OWN:
        own_config(name, 64)
    elif own in _PEERS and settings:
        _hold_s(name)
    elif own not in _PEERS:
        hint = did_you_mean(own, NAMES) or f"; known: {', '.join(NAMES)}"
        raise ConfigError(f"--policies: `{name}` is no policy{hint}")


def make(name: str, world: World) -> Policy:
    """The policy for one simulation."""
    if name.partition(":")[0] == OWN:
        constants = world.faults.constants
        return OwnPolicy(world, own_config(name, world.block_tokens, constants))
    inner = _PEERS[name.partition(":")[0]](world)
    return Held(world, inner, _hold_s(name)) if ":" in name else inner


def _hold_s(name: str) -> float:
    """Of `policy:hold_s=1.5`, the only setting of others' policies. Raises ConfigError."""
    key, _, text = name.partition(":")[2].partition("=")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if key != "hold_s" or not 0 < seconds < float("inf"):
        raise ConfigError(f"--policies: {name}: others take hold_s=SECONDS and nothing else")
    return seconds
