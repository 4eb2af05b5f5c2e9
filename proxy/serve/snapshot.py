"""What one configuration makes of a worker, for the exchanges that begin while it is in use.

A snapshot is never changed. Parts whose sections have not changed are those of the snapshot before;
the replicas are the worker's own (`replicas.py`), whatever the configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from auth.access import Access
from auth.authenticator import AnonymousAuthenticator, Authenticator
from backend.retries import RetryBudget
from backend.token_ids import with_ids
from core.clock import Clock
from core.metrics import Metrics
from proxy.access_log import AccessLog
from proxy.body_rules import make_body_rules
from proxy.catalog import Catalog
from proxy.cors import Cors
from proxy.dispatch import Dispatcher
from proxy.flow import Watchdog
from proxy.hedge import Hedging
from proxy.lateness import Lateness
from proxy.observe import Observer
from proxy.overload.admission import Admission
from proxy.pins import Pins
from proxy.pipeline import Pipeline
from proxy.prefills import Prefills
from proxy.serve.config import Config
from proxy.serve.prepared import Prepared
from proxy.serve.replicas import Replicas
from proxy.serve.revocations import shared_revocations
from proxy.serve.supervise.run_dir import state_folder
from proxy.services import Services
from proxy.stored import Stored
from proxy.token_gaps import GapMeters
from proxy.token_ids import HandOver
from proxy.tracing.tracer import Tracer
from proxy.turns import Turns
from proxy.usage import UsageLog, make_usage_log
from proxy.variants import make_variants
from ratelimit.config import LimitsConfig
from ratelimit.limiter import Limiter
from routing.config import complete
from routing.salts import CacheSalts


class Part(Protocol):
    """Something with tasks or connections of its own."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class File(Protocol):
    """Something that is closed at once."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a worker has one of, whatever its configuration. `index`: which worker it is."""

    index: int
    metrics: Metrics
    clock: Clock
    watchdog: Watchdog
    admission: Admission
    replicas: Replicas
    turns: Turns
    gaps: GapMeters


class Snapshot:
    """Everything that the pipeline works with, by one configuration. `parts` and `files` are to be
    closed when no snapshot that has them is in use any more."""

    def __init__(
        self, prepared: Prepared, around: Surroundings, previous: Snapshot | None = None
    ) -> None:
        """Raises ConfigError."""
        config, metrics = prepared.config, around.metrics
        self.prepared = prepared
        self.authenticator = _authenticator(prepared, metrics, previous)
        self.limiter = _limiter(prepared, around, previous)
        self.budget = _budget(prepared, previous)
        prepared.prompter.use_metrics(metrics)
        prepared.prompter.keep_ids(config.upstream.token_ids == "auto")
        self.observer = _observer(prepared, around, previous)
        self.parts: Sequence[Part] = (self.authenticator, self.limiter.store)
        if self.observer.usage is not None:
            self.parts = (*self.parts, self.observer.usage)
        if self.observer.tracer is not None:
            self.parts = (*self.parts, self.observer.tracer)
        self.files: Sequence[File] = (prepared.prompter, self.observer.log)
        replicas, models = around.replicas, complete(config.models)
        bases = {m.name: m.adapter_of for m in models if m.adapter_of is not None}
        self.pins = _pins(prepared, previous)
        dispatcher = Dispatcher(
            router=replicas.router,
            pool=replicas.pool,
            health=replicas.registry,
            budget=self.budget,
            max_tries=config.upstream.retries.max_tries,
            timeouts=config.upstream.timeouts,
            heartbeats=config.upstream.heartbeats,
            watchdog=around.watchdog,
            estimates=self.limiter.estimates,
            server_timing=config.listen.server_timing,
            clock=around.clock,
            metrics=metrics,
            bases=bases,
            prefills=_prefills(config, around),
            hedging=_hedging(config, around),
            hand_over=_hand_over(config, around),
            gaps=around.gaps,
        )
        self.pipeline = Pipeline(
            Services(
                authenticator=self.authenticator,
                catalog=Catalog(models, prepared.shared.started, _access(config)),
                prompter=prepared.prompter,
                limiter=self.limiter,
                dispatcher=dispatcher,
                observer=self.observer,
                admission=around.admission,
                cors=Cors(config.listen.cors.origins if config.listen.cors else ()),
                health_path=config.listen.health_path,
                salt_of=CacheSalts(prepared.cache_secret, config.routing.share_cache).of,
                clock=around.clock,
                body_rules=make_body_rules(config.requests, config.models),
                explained=frozenset(config.routing.debug_header.tenants),
                prioritized=frozenset(m.name for m in models if m.takes_priority),
                elsewhere=config.models_elsewhere,
                turns=around.turns,
                passthrough={rule.path: rule for rule in config.passthrough},
                variants=make_variants(models),
                stored=Stored(
                    self.pins,
                    [model.name for model in models],
                    lambda model: replicas.registry.ids_of(bases.get(model, model)),
                    dispatcher.deliver,
                    around.clock,
                ),
            )
        )

    def __repr__(self) -> str:
        return f"<Snapshot {self.prepared.generation} {self.pipeline}>"

    @property
    def config(self) -> Config:
        return self.prepared.config

    def unready(self) -> list[str]:
        """Why requests cannot be served, as far as its own parts are concerned."""
        reasons = (self.authenticator.ready(), self.limiter.ready())
        return [reason for reason in reasons if reason is not None]


def _authenticator(
    prepared: Prepared, metrics: Metrics, previous: Snapshot | None
) -> Authenticator | AnonymousAuthenticator:
    """Another one, with nothing remembered, as soon as anything has changed: trust that was taken
    away ends at once. The keys themselves are on the board."""
    if previous is not None and previous.prepared.marks.auth == prepared.marks.auth:
        return previous.authenticator
    config = prepared.config.auth
    if config == "none":
        return AnonymousAuthenticator()
    return Authenticator(
        config,
        metrics,
        prepared.shared.key_board,
        keys=prepared.api_keys,
        copies=state_folder(prepared.config.run_dir),
        revocations=shared_revocations(prepared.config),
        make_fetcher=lambda issuer: prepared.fetchers[issuer.issuer],
    )


def _access(config: Config) -> Access | None:
    if config.auth == "none" or not config.auth.rules:
        return None
    return Access(config.auth.rules)


def _limiter(prepared: Prepared, around: Surroundings, previous: Snapshot | None) -> Limiter:
    if previous is not None and previous.prepared.marks.limits == prepared.marks.limits:
        return previous.limiter
    config = prepared.config.named_limits or LimitsConfig()
    return Limiter(
        config,
        around.metrics,
        shared=(prepared.shared.buckets, around.index),
        previous=None if previous is None else previous.limiter,
    )


def _budget(prepared: Prepared, previous: Snapshot | None) -> RetryBudget:
    retries = prepared.config.upstream.retries
    if previous is not None and previous.config.upstream.retries == retries:
        return previous.budget
    return RetryBudget(retries.budget_ratio, retries.budget_floor)


def _observer(prepared: Prepared, around: Surroundings, previous: Snapshot | None) -> Observer:
    log, usage = _access_log(prepared, around, previous), _usage_log(prepared, around, previous)
    tracer = _tracer(prepared, around, previous)
    if previous is not None:
        observer = previous.observer
        same = previous.config.budgets == prepared.config.budgets
        if same and (observer.log, observer.usage, observer.tracer) == (log, usage, tracer):
            return observer
    return Observer(
        log=log,
        metrics=around.metrics,
        clock=around.clock,
        usage=usage,
        budgets=prepared.config.budgets,
        tracer=tracer,
        recent=prepared.shared.recent.for_worker(around.index),
    )


def _prefills(config: Config, around: Surroundings) -> Prefills | None:
    models = frozenset(one.model for one in config.replicas if one.role == "prefill")
    if not models:
        return None
    replicas, settings = around.replicas, config.routing.disaggregation
    return Prefills(
        models,
        router=replicas.router,
        pool=replicas.pool,
        health=replicas.registry,
        timeouts=config.upstream.timeouts,
        watchdog=around.watchdog,
        metrics=around.metrics,
        least_tokens=settings.least_tokens,
        tokens_per_second=settings.transfer_tokens_per_second,
        others_weight=config.routing.others_weight,
    )


def _hedging(config: Config, around: Surroundings) -> Hedging | None:
    hedge = config.upstream.hedge
    if hedge is None:
        return None
    return Hedging(
        router=around.replicas.router,
        lateness=Lateness(hedge),
        budget=RetryBudget(hedge.budget_ratio, floor=1),
        watchdog=around.watchdog,
        clock=around.clock,
        metrics=around.metrics,
    )


def _hand_over(config: Config, around: Surroundings) -> HandOver | None:
    if config.upstream.token_ids == "off":
        return None
    return HandOver(around.replicas.tokens.accepted, with_ids, around.metrics)


def _pins(prepared: Prepared, previous: Snapshot | None) -> Pins:
    """Of the worker, whatever its configurations."""
    if previous is not None:
        return previous.pins
    return Pins(prepared.cache_secret.encode() or prepared.shared.secret)


def _access_log(prepared: Prepared, around: Surroundings, previous: Snapshot | None) -> AccessLog:
    access = prepared.config.log.access
    if previous is not None and previous.config.log.access == access:
        return previous.observer.log
    return AccessLog(access, around.metrics)


def _tracer(prepared: Prepared, around: Surroundings, previous: Snapshot | None) -> Tracer | None:
    tracing = prepared.config.tracing
    if previous is not None and previous.config.tracing == tracing:
        return previous.observer.tracer
    return None if tracing is None else Tracer(tracing, around.metrics)


def _usage_log(
    prepared: Prepared, around: Surroundings, previous: Snapshot | None
) -> UsageLog | None:
    if previous is not None and previous.prepared.marks.usage == prepared.marks.usage:
        return previous.observer.usage
    usage = prepared.config.usage
    if usage is None:
        return None
    return make_usage_log(usage, prepared.config.limits_redis, around.metrics)
