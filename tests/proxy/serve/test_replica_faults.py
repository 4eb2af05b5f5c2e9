from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from backend.config import ReplicaConfig
from core.loading import convert
from proxy.serve.discover_config import DiscoverConfig
from proxy.serve.replica_faults import replica_faults
from routing.config import ModelConfig


def faults(models: Any, replicas: Any, discover: Any = (), file: str | None = None) -> list[str]:
    listed = SimpleNamespace(
        models=[convert(one, ModelConfig, "/") for one in models],
        replicas=[convert(one, ReplicaConfig, "/") for one in replicas],
        discover=[convert(one, DiscoverConfig, "/") for one in discover],
        replicas_file=file,
    )
    return [f"{path}: {sentence}" for path, sentence in replica_faults(listed)]


def test_bodies_of_a_model_are_alike() -> None:
    models = [{"name": "a"}, {"name": "b", "takes_priority": True}]
    replicas = [
        {"url": "http://a:1", "model": "a"},
        {"url": "https://api.example", "model": "a", "engine": "openai"},
        {"url": "https://api.example:444", "model": "b", "engine": "openai"},
    ]
    assert faults(models, replicas) == [
        ".models[0]: has replicas with `engine: openai` and others, which are asked in other "
        "words; give those a model of their own, and name it in `fallback`",
        ".models[1].takes_priority: no replica with `engine: openai` does",
    ]


def test_those_that_are_looked_for_count() -> None:
    source = {"dns": "vllm.internal", "port": 8000}
    models = [{"name": "a"}, {"name": "b", "adapter_of": "a"}]
    assert faults(models, [], [source | {"model": "a"}]) == []
    assert faults(models, [], [source | {"model": "b"}]) == [
        ".models[0]: no replica serves `a`; add one to `replicas`",
        ".discover[0].model: `b` is an adapter; name `a`",
    ]
    assert faults(models, [], [source | {"model": "a", "role": "prefill"}]) == [
        ".models[0]: no replica serves `a`; add one to `replicas`"
    ]
    engines = [source | {"model": "a"}, source | {"model": "a", "engine": "openai"}]
    (mixed,) = faults(models, [], engines)
    assert mixed.startswith(".models[0]: has replicas")
    assert faults(models, [], file="more.yaml") == []
