"""The whole configuration: every package's section joined, and what holds between them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from auth.config import AuthConfig
from backend.config import ReplicaConfig, UpstreamConfig
from core.describe import did_you_mean
from core.errors import ConfigError
from core.loading import load, parse
from core.section import Contradictions, FilePath, OutputPath, Section
from proxy.budgets.config import BudgetsConfig
from proxy.config import (
    AccessTarget,
    AdminConfig,
    CorsConfig,
    ListenAddress,
    ListenConfig,
    ListenLimits,
    ListenTimeouts,
    LogConfig,
    UsageConfig,
)
from proxy.passthrough import PassthroughRule
from proxy.request_config import RequestsConfig
from proxy.serve.cpus import usable_cpus
from proxy.serve.discover_config import DiscoverConfig, DnsConfig
from proxy.serve.references import missing_references
from proxy.serve.replica_faults import replica_faults
from proxy.tls.config import TlsConfig
from proxy.tracing.config import TracingConfig
from ratelimit.config import LimitsConfig, RedisConfig, RedisStoreConfig, Rule
from routing.config import ModelConfig, RoutingConfig

__all__ = [
    "AccessTarget",
    "AdminConfig",
    "Config",
    "CorsConfig",
    "ListenAddress",
    "ListenConfig",
    "ListenLimits",
    "ListenTimeouts",
    "LogConfig",
    "TlsConfig",
    "UsageConfig",
    "load_config",
    "parse_config",
]

Fault = tuple[str, str]


@functools.cache
def _default_workers() -> int:
    """The same for the life of a gateway, though its container may grow: a reload changes no
    workers."""
    return min(usable_cpus(), 256)


class ReloadConfig(Section):
    """`watch`: take the file, and the files that it points at, anew whenever they change."""

    watch: bool = True


class Config(Section):
    """One configuration file.

    `auth` and `listen.tls` have no defaults: going without must be asked for by name.
    `propagation_s`: how long connections are accepted after a request to stop, while readiness
    says no; `drain_s`: how long exchanges may go on after that; both in seconds. `run_dir`: the
    folder of the control socket.
    """

    listen: ListenConfig
    auth: Literal["none"] | AuthConfig
    models: Annotated[tuple[ModelConfig, ...], Meta(min_length=1)]
    replicas: tuple[ReplicaConfig, ...] = ()
    replicas_file: FilePath | None = None
    discover: tuple[DiscoverConfig, ...] = ()
    dns: DnsConfig = DnsConfig()
    admin: AdminConfig | None = None
    workers: Annotated[int, Meta(ge=1, le=256)] = msgspec.field(default_factory=_default_workers)
    propagation_s: Annotated[float, Meta(ge=0, le=3600)] = 5.0
    drain_s: Annotated[float, Meta(ge=0, le=86_400)] = 600.0
    reload: ReloadConfig = ReloadConfig()
    run_dir: OutputPath | None = None
    limits: LimitsConfig | None = None
    requests: RequestsConfig = RequestsConfig()
    passthrough: tuple[PassthroughRule, ...] = ()
    routing: RoutingConfig = RoutingConfig()
    upstream: UpstreamConfig = UpstreamConfig()
    usage: UsageConfig | None = None
    budgets: BudgetsConfig | None = None
    tracing: TracingConfig | None = None
    # A factory: JSON Schema cannot show a default that holds a value type of ours.
    log: LogConfig = msgspec.field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        faults = [
            *_name_clashes(self),
            *replica_faults(self),
            *_variant_faults(self),
            *_passthrough_faults(self),
            *_limit_faults(self),
            *_access_faults(self),
            *_request_faults(self),
            *_address_clashes(self),
            *_usage_faults(self),
        ]
        if faults:
            raise Contradictions(faults)

    @property
    def active(self) -> tuple[ReplicaConfig, ...]:
        """The replicas that may get something new."""
        return tuple(replica for replica in self.replicas if not replica.drain)

    @property
    def models_elsewhere(self) -> frozenset[str]:
        """Those whose replicas know OpenAI's fields alone, adapters on them included."""
        named = {r.model for r in (*self.replicas, *self.discover) if not r.dialect.own_fields}
        return frozenset(m.name for m in self.models if (m.adapter_of or m.name) in named)

    @property
    def likely_replicas(self) -> int:
        """Half of those that there may come to be, or what there is now."""
        most = sum(source.most for source in self.discover)
        return max(len(self.replicas), (len(self.replicas) + most) // 2)

    @property
    def named_limits(self) -> LimitsConfig | None:
        """`limits` by the models' own names, wherever it was written with their aliases."""
        if self.limits is None:
            return None
        own = {alias: model.name for model in self.models for alias in model.aliases}
        return msgspec.structs.replace(
            self.limits,
            prices={own.get(name, name): price for name, price in self.limits.prices.items()},
            rules=tuple(_by_name(rule, own) for rule in self.limits.rules),
        )

    @property
    def limits_redis(self) -> RedisConfig | None:
        """The Redis that the limits are kept in, if they are."""
        store = None if self.limits is None else self.limits.store
        return store.redis if isinstance(store, RedisStoreConfig) else None


def _by_name(rule: Rule, own: Mapping[str, str]) -> Rule:
    if own.keys().isdisjoint(rule.match.models):
        return rule
    models = tuple(own.get(name, name) for name in rule.match.models)
    return msgspec.structs.replace(rule, match=msgspec.structs.replace(rule.match, models=models))


def load_config(path: str) -> Config:
    """Raises ConfigError with one line for each problem."""
    return load(path, Config)


def parse_config(data: bytes, path: str) -> Config:
    """As `load_config`, of what was read from `path` before, and with everything there that it
    points at: files that can be read, secrets that can be revealed."""
    config = parse(data, path, Config)
    if faults := list(missing_references(config)):
        raise ConfigError("\n".join(faults))
    return config


def _name_clashes(config: Config) -> Iterator[Fault]:
    """A client's name must mean one model."""
    owners: dict[str, str] = {}
    for index, model in enumerate(config.models):
        places = [(model.name, "name")]
        places += [(alias, f"aliases[{n}]") for n, alias in enumerate(model.aliases)]
        for name, place in places:
            path = f".models[{index}].{place}"
            if name in owners:
                yield path, f"`{name}` already means {owners[name]}; a name means one model"
            owners.setdefault(name, f"the model `{model.name}` ($.models[{index}])")


def _variant_faults(config: Config) -> Iterator[Fault]:
    names = [model.name for model in config.models]
    for index, model in enumerate(config.models):
        path = f".models[{index}]"
        others = [(f"canaries[{n}].to", canary.to) for n, canary in enumerate(model.canaries)]
        others += [(f"fallback[{n}]", name) for n, name in enumerate(model.fallback)]
        for place, name in others:
            if name == model.name:
                yield f"{path}.{place}", f"`{name}` is the model itself; name another one"
            elif name not in names:
                hint = did_you_mean(name, names) or f"; models: {', '.join(names)}"
                yield f"{path}.{place}", f"no model is named `{name}`{hint}"


def _passthrough_faults(config: Config) -> Iterator[Fault]:
    names = [name for model in config.models for name in (model.name, *model.aliases)]
    paths = [rule.path for rule in config.passthrough]
    for index, rule in enumerate(config.passthrough):
        if rule.path in paths[:index]:
            yield f".passthrough[{index}].path", f"`{rule.path}` is given twice"
        if rule.path == config.listen.health_path:
            yield f".passthrough[{index}].path", "is $.listen.health_path; give one of them another"
        if rule.model is not None and rule.model not in names:
            hint = did_you_mean(rule.model, names) or f"; models: {', '.join(names)}"
            yield f".passthrough[{index}].model", f"no model is named `{rule.model}`{hint}"


def _limit_faults(config: Config) -> Iterator[Fault]:
    if config.limits is None:
        return
    names = [name for model in config.models for name in (model.name, *model.aliases)]
    for model in config.models:
        priced = [name for name in (model.name, *model.aliases) if name in config.limits.prices]
        for name in priced[1:]:
            yield f".limits.prices.{name}", f"`{priced[0]}` is the same model; give one price"
    named = [(f"prices.{name}", name) for name in config.limits.prices]
    for index, rule in enumerate(config.limits.rules):
        for number, name in enumerate(rule.match.models):
            named.append((f"rules[{index}].match.models[{number}]", name))
    for place, name in named:
        if name not in names:
            hint = did_you_mean(name, names) or f"; models: {', '.join(names)}"
            yield f".limits.{place}", f"no model is named `{name}`{hint}"


def _usage_faults(config: Config) -> Iterator[Fault]:
    if config.routing.hosts.redis and config.limits_redis is None:
        yield ".routing.hosts.redis", "is in the Redis of the limits: give `limits.store.redis` too"
    if config.usage is None or config.usage.redis_stream is None:
        return
    if config.limits_redis is None:
        yield ".usage.redis_stream", "is in the Redis of the limits: give `limits.store.redis` too"


def _access_faults(config: Config) -> Iterator[Fault]:
    if config.auth == "none":
        return
    tls = config.listen.tls
    if config.auth.client_certificates and (tls == "off" or tls.client_certificates is None):
        yield ".auth.client_certificates", "clients are asked for none: see listen.tls"
    if config.auth.revocations.redis and config.limits_redis is None:
        yield (
            ".auth.revocations.redis",
            "is in the Redis of the limits: give `limits.store.redis` too",
        )
    names = [name for model in config.models for name in (model.name, *model.aliases)]
    for index, rule in enumerate(config.auth.rules):
        for number, name in enumerate(rule.models):
            if name not in names:
                hint = did_you_mean(name, names) or f"; models: {', '.join(names)}"
                path = f".auth.rules[{index}].models[{number}]"
                yield path, f"no model is named `{name}`{hint}"


def _request_faults(config: Config) -> Iterator[Fault]:
    names = [name for model in config.models for name in (model.name, *model.aliases)]
    allowed = [("", config.requests.allow_fields)]
    for index, rule in enumerate(config.requests.rules):
        allowed.append((f".rules[{index}]", rule.allow_fields or ()))
        for number, name in enumerate(rule.models):
            if name not in names:
                hint = did_you_mean(name, names) or f"; models: {', '.join(names)}"
                path = f".requests.rules[{index}].models[{number}]"
                yield path, f"no model is named `{name}`{hint}"
    for place, fields in allowed:
        if "priority" in fields and any(model.takes_priority for model in config.models):
            yield (
                f".requests{place}.allow_fields",
                "`priority` is the gateway's to set where a model has `takes_priority`",
            )


def _address_clashes(config: Config) -> Iterator[Fault]:
    if config.admin is not None and config.admin.address.parsed.port != 0:
        for index, address in enumerate(config.listen.addresses):
            if address.parsed == config.admin.address.parsed:
                yield (
                    ".admin.address",
                    f"is also $.listen.addresses[{index}]; clients must not reach the admin pages",
                )
