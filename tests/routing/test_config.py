from __future__ import annotations

import msgspec
import pytest

from core.kv_events import CPU, DISK, GPU
from core.section import Contradictions, Secret
from routing.config import (
    AdmissionConfig,
    ModelConfig,
    Priors,
    RoutingConfig,
    TiersConfig,
    WaitClass,
    complete,
)


@pytest.mark.parametrize(
    ("section", "value"),
    [
        (ModelConfig, {"name": ""}),
        (ModelConfig, {"name": "m", "aliases": ["m"]}),
        (ModelConfig, {"name": "m", "max_model_len": 0}),
        (ModelConfig, {"name": "m", "max_prompt_bytes": 0}),
        (ModelConfig, {"name": "m", "template_engine": "mako"}),
        (ModelConfig, {"name": "m", "tokeniser": "x"}),
        (ModelConfig, {"name": "m", "canaries": [{"to": "n"}]}),
        (ModelConfig, {"name": "m", "canaries": [{"to": "n", "percent": 101}]}),
        (ModelConfig, {"name": "m", "canaries": [{"to": "n", "percent": 60}] * 2}),
        (ModelConfig, {"name": "m", "canaries": [{"to": "n", "header": "no header"}]}),
        (RoutingConfig, {"policy": "sticky"}),
        (RoutingConfig, {"decode_weight": -0.1}),
        (RoutingConfig, {"tie_window_s": 2}),
        (RoutingConfig, {"block_tokens": 40}),
        (RoutingConfig, {"index_entries": 0}),
        (RoutingConfig, {"attention_knee_tokens": 0}),
        (RoutingConfig, {"share_cache": "everybody"}),
        (RoutingConfig, {"share_cache": "organisation"}),
        (Priors, {"prefill_tokens_per_second": 0}),
        (Priors, {"decode_seconds_per_token": -1}),
        (Priors, {"output_tokens": 0}),
    ],
)
def test_refuses_what_makes_no_sense(section: type, value: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(value, section)


def test_defaults_are_valid() -> None:
    config = msgspec.convert({}, RoutingConfig)
    assert (config.policy, config.others_weight, config.block_tokens) == (
        "prefix_affinity",
        0.2,
        64,
    )
    assert msgspec.convert({"name": "m"}, ModelConfig).multimodal is False


def test_an_objective_stands_for_a_weight_which_can_be_given_instead() -> None:
    weights = [RoutingConfig(objective=name).others_weight for name in ("ttft", "balanced", "tpot")]
    assert weights == sorted(set(weights))
    assert RoutingConfig(objective="tpot", decode_weight=0.0).others_weight == 0.0


@pytest.mark.parametrize(("priority", "seconds"), [(-5, 30.0), (0, 30.0), (1, 5.0), (9, 60.0)])
def test_the_deadline_is_that_of_the_first_class_that_fits(priority: int, seconds: float) -> None:
    classes = (WaitClass(up_to=0, deadline_s=30.0), WaitClass(up_to=8, deadline_s=5.0))
    assert AdmissionConfig(deadline_s=60.0, classes=classes).deadline_of(priority) == seconds


def test_classes_are_in_order() -> None:
    classes = [{"up_to": 1, "deadline_s": 1}, {"up_to": 1, "deadline_s": 2}]
    with pytest.raises(msgspec.ValidationError, match="above the one before"):
        msgspec.convert({"classes": classes}, AdmissionConfig)


def test_who_shares_caches() -> None:
    secret = Secret("env:X")
    assert RoutingConfig(secret=secret, share_cache="organisation").share_cache == "organisation"
    RoutingConfig(secret=secret, share_cache=(("a", "b"), ("c",)))
    with pytest.raises(Contradictions) as caught:
        RoutingConfig(share_cache=(("a", "b"), (), ("b", "c")))
    assert [path for path, _ in caught.value.faults] == [
        ".share_cache",
        ".share_cache[1]",
        ".share_cache[2]",
    ]


def test_an_adapter_is_its_model_but_for_its_own() -> None:
    base = ModelConfig(name="a", aliases=("x",), max_model_len=10, bos_token="<s>", multimodal=True)
    adapter = ModelConfig(name="b", aliases=("y",), adapter_of="a")
    longer = ModelConfig(name="c", adapter_of="a", max_model_len=20)
    first, second, third = complete([adapter, base, longer])
    assert second is base
    assert (first.name, first.aliases, first.adapter_of) == ("b", ("y",), "a")
    assert (first.max_model_len, first.bos_token, first.multimodal) == (10, "<s>", True)
    assert third.max_model_len == 20


@pytest.mark.parametrize(
    ("tiers", "levels"),
    [
        ({}, ((CPU, 1.0),)),
        ({"cpu": 0.8, "disk": 0.25}, ((GPU, 1.0), (CPU, 0.8), (DISK, 0.25))),
        ({"cpu": 1.0, "disk": 0.25}, ((CPU, 1.0), (DISK, 0.25))),
        ({"cpu": 0.5, "disk": 0.5}, ((GPU, 1.0), (DISK, 0.5))),
        ({"cpu": 1.0, "disk": 1.0}, ((DISK, 1.0),)),
        ({"cpu": 0.0}, ((GPU, 1.0),)),
    ],
)
def test_tiers_of_equal_worth_are_one_level(
    tiers: dict[str, float], levels: tuple[tuple[int, float], ...]
) -> None:
    assert TiersConfig(**tiers).levels == levels


def test_a_slower_tier_is_worth_no_more() -> None:
    with pytest.raises(ValueError, match="must not be above"):
        TiersConfig(cpu=0.2, disk=0.3)
