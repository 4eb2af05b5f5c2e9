"""Which model answers instead of the one that was asked for: canaries, and fallbacks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from core.errors import BadRequest, GatewayError, Unavailable, UpstreamError
from core.exchange import Request
from core.principal import Principal


class Canary(Protocol):
    """Of a model's requests those of some `tenants`, those with a `header` (`name` or `name:
    value`), and `percent` of all others."""

    @property
    def to(self) -> str: ...

    @property
    def percent(self) -> float: ...

    @property
    def tenants(self) -> Sequence[str]: ...

    @property
    def header(self) -> str | None: ...


class Model(Protocol):
    """What is needed of a model's configuration."""

    @property
    def name(self) -> str: ...

    @property
    def canaries(self) -> Sequence[Canary]: ...

    @property
    def fallback(self) -> Sequence[str]: ...


class Variants:
    """Of the models that have any."""

    def __init__(self, models: Sequence[Model]) -> None:
        self._canaries = {model.name: model.canaries for model in models if model.canaries}
        self._fallbacks = {model.name: (*model.fallback,) for model in models if model.fallback}

    def __repr__(self) -> str:
        return f"<Variants {sorted({*self._canaries, *self._fallbacks})}>"

    def chosen(self, model: str, principal: Principal, request: Request, exchange_id: str) -> str:
        """The model that is to answer a request for `model`. `exchange_id`, hexadecimal and random,
        decides about percentages."""
        canaries = self._canaries.get(model)
        if canaries is None:
            return model
        for canary in canaries:
            if principal.tenant in canary.tenants or _has(request, canary.header):
                return canary.to
        drawn = int(exchange_id[:8], 16) * 100 / 2**32
        for canary in canaries:
            drawn -= canary.percent
            if drawn < 0:
                return canary.to
        return model

    def after(self, model: str) -> tuple[str, ...]:
        """Which models are tried, in this order, when `model` fails."""
        return self._fallbacks.get(model, ())


def may_fall_back(error: GatewayError) -> bool:
    """Whether another model may be tried: where none of the replicas could answer, but not where
    one may still be at work; and where the prompt was too long for the model."""
    if isinstance(error, BadRequest):
        return error.reason == "context_length_exceeded"
    if isinstance(error, UpstreamError):
        return error.retryable
    return isinstance(error, Unavailable)


def make_variants(models: Sequence[Model]) -> Variants | None:
    """None: every model answers for itself, and nothing needs to be looked up."""
    return Variants(models) if any(model.canaries or model.fallback for model in models) else None


def _has(request: Request, header: str | None) -> bool:
    if header is None:
        return False
    name, _, wanted = header.partition(":")
    value = request.header(name.strip().lower().encode("ascii"))
    return value is not None and (not wanted or value == wanted.strip().encode("utf-8"))
