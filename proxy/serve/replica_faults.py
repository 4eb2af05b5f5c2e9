"""What must hold between replicas and models. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from backend.config import ReplicaConfig
from core.describe import did_you_mean
from proxy.serve.discover_config import DiscoverConfig
from routing.config import OF_AN_ADAPTER, ModelConfig

Fault = tuple[str, str]


class Listed(Protocol):
    """The sections of the configuration that this is about."""

    @property
    def models(self) -> Sequence[ModelConfig]: ...

    @property
    def replicas(self) -> Sequence[ReplicaConfig]: ...

    @property
    def replicas_file(self) -> str | None: ...

    @property
    def discover(self) -> Sequence[DiscoverConfig]: ...


def replica_faults(config: Listed) -> Iterator[Fault]:
    """Each replica serves a model, each model has replicas that are alike."""
    yield from _unserved(config)
    yield from _mixed_engines(config)
    yield from _adapter_faults(config)


def _unserved(config: Listed) -> Iterator[Fault]:
    names = [model.name for model in config.models]
    served = set()
    ids: dict[str, int] = {}
    for index, replica in enumerate(config.replicas):
        if replica.role != "prefill":
            served.add(replica.model)
        if replica.model not in names:
            hint = did_you_mean(replica.model, names) or f"; models: {', '.join(names)}"
            yield f".replicas[{index}].model", f"no model is named `{replica.model}`{hint}"
        identity = replica.replica.id
        if (first := ids.setdefault(identity, index)) != index:
            yield (
                f".replicas[{index}]",
                f"has the same id `{identity}` as $.replicas[{first}]; give each its own `id`",
            )
    for index, source in enumerate(config.discover):
        if source.role != "prefill":
            served.add(source.model)
        if source.model not in names:
            hint = did_you_mean(source.model, names) or f"; models: {', '.join(names)}"
            yield f".discover[{index}].model", f"no model is named `{source.model}`{hint}"
    for index, model in enumerate(config.models):
        listed = config.replicas_file is not None  # that file may be empty for now
        if model.adapter_of is None and model.name not in served and not listed:
            yield f".models[{index}]", f"no replica serves `{model.name}`; add one to `replicas`"


def _mixed_engines(config: Listed) -> Iterator[Fault]:
    """What a body may have is decided by its model."""
    kinds: dict[str, set[bool]] = {}
    for replica in (*config.replicas, *config.discover):
        kinds.setdefault(replica.model, set()).add(replica.dialect.own_fields)
    for index, model in enumerate(config.models):
        if len(kinds.get(model.name, ())) > 1:
            yield (
                f".models[{index}]",
                "has replicas with `engine: openai` and others, which are asked in other words; "
                "give those a model of their own, and name it in `fallback`",
            )
        elif model.takes_priority and False in kinds.get(model.name, ()):
            yield f".models[{index}].takes_priority", "no replica with `engine: openai` does"


def _adapter_faults(config: Listed) -> Iterator[Fault]:
    bases = {model.name: model.adapter_of for model in config.models}
    named = [(f".replicas[{index}]", one.model) for index, one in enumerate(config.replicas)]
    named += [(f".discover[{index}]", one.model) for index, one in enumerate(config.discover)]
    for place, name in named:
        if (base := bases.get(name)) is not None:
            yield f"{place}.model", f"`{name}` is an adapter; name `{base}`"
    for index, model in enumerate(config.models):
        base, path = model.adapter_of, f".models[{index}]"
        if base is None:
            continue
        if bases.get(base, base) is not None:
            hint = did_you_mean(base, list(bases)) or "; name one that is none itself"
            yield f"{path}.adapter_of", f"`{base}` is no model that has replicas{hint}"
        for field in msgspec.structs.fields(model):
            if field.name not in OF_AN_ADAPTER and getattr(model, field.name) != field.default:
                yield f"{path}.{field.name}", f"is that of `{base}`, which this adapts; remove it"
