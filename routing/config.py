"""What an operator may say about models and routing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from core.kv_events import CPU, DISK, GPU
from core.section import Contradictions, FilePath, Secret, Section

Objective = Literal["ttft", "balanced", "tpot"]
Policy = Literal["prefix_affinity", "least_load", "round_robin"]
Engine = Literal["auto", "jinja2", "minijinja"]
ContentFormat = Literal["auto", "string", "openai"]
ShareCache = Literal["tenant", "organisation"] | tuple[tuple[str, ...], ...]


class Canary(Section):
    """Requests that the model `to` answers instead: of `tenants`, with a `header` (`name` or
    `name: value`), or `percent` of the others."""

    to: str
    percent: Annotated[float, Meta(ge=0, le=100)] = 0.0
    tenants: tuple[str, ...] = ()
    header: Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]+(: ?[\x21-\x7e]+)?$")] | None = None

    def __post_init__(self) -> None:
        if not self.percent and not self.tenants and self.header is None:
            raise ValueError("expected `percent`, `tenants` or `header`: which requests it gets")


class ModelConfig(Section):
    """One model that clients may name.

    Without `tokenizer` prompts are estimated from their bytes. `chat_template` is a Jinja file or
    a `tokenizer_config.json` that holds one. `chat_template_kwargs` lists the variables that a
    request may set (None: every variable the template reads). `multimodal` admits content parts
    that are not text. `max_prompt_bytes` bounds the work that one prompt can make: a megabyte
    without a space takes half a second to encode. `takes_priority`: its replicas schedule by
    priority (vLLM's `--scheduling-policy priority`), and are told the callers'.

    A LoRA adapter is a model with `adapter_of`: the name of the one whose replicas serve it too,
    under its own `name`. It has from there whatever is not in `OF_AN_ADAPTER`.

    `canaries` are other models that answer some of its requests, `fallback` those that are tried,
    in this order, when none of its replicas can answer or the prompt is too long for it.
    """

    name: str
    adapter_of: str | None = None
    aliases: tuple[str, ...] = ()
    tokenizer: FilePath | None = None
    chat_template: FilePath | None = None
    template_engine: Engine = "auto"
    content_format: ContentFormat = "auto"
    bos_token: str | None = None
    eos_token: str | None = None
    max_model_len: int | None = None
    max_prompt_bytes: int = 4 * 1024 * 1024
    chat_template_kwargs: tuple[str, ...] | None = None
    multimodal: bool = False
    takes_priority: bool = False
    canaries: tuple[Canary, ...] = ()
    fallback: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("`name` is empty; give the name that clients send")
        if "" in self.aliases or self.name in self.aliases:
            raise ValueError("`aliases` holds an empty name or the model's own; remove it")
        if self.max_model_len is not None and self.max_model_len < 1:
            raise ValueError("`max_model_len` must be at least 1 token; leave it out if unknown")
        if self.max_prompt_bytes < 1:
            raise ValueError("`max_prompt_bytes` must be at least 1")
        if sum([canary.percent for canary in self.canaries]) > 100:
            raise ValueError("the `percent` of all `canaries` are more than 100 together")


OF_AN_ADAPTER = (
    "name",
    "aliases",
    "adapter_of",
    "chat_template",
    "max_model_len",
    "canaries",
    "fallback",
)


def complete(models: Sequence[ModelConfig]) -> tuple[ModelConfig, ...]:
    """`models`, adapters with all that they have from the models that they adapt."""
    by_name = {model.name: model for model in models}
    result = []
    for model in models:
        if model.adapter_of is not None and (base := by_name.get(model.adapter_of)) is not None:
            own = {name: getattr(model, name) for name in OF_AN_ADAPTER}
            own["chat_template"] = model.chat_template or base.chat_template
            own["max_model_len"] = model.max_model_len or base.max_model_len
            model = msgspec.structs.replace(base, **own)
        result.append(model)
    return tuple(result)


class Priors(Section):
    """What a replica of weight 1 is believed to do before it was watched.

    `prefill_tokens_per_second` is P, `decode_seconds_per_sequence` a and
    `decode_seconds_per_token` b of: step time = constant + a * sequences + b * KV tokens.
    """

    prefill_tokens_per_second: float = 16_000.0
    decode_seconds_per_sequence: float = 0.000_08
    decode_seconds_per_token: float = 2e-8
    output_tokens: float = 300.0

    def __post_init__(self) -> None:
        if self.prefill_tokens_per_second <= 0:
            raise ValueError("`prefill_tokens_per_second` must be above 0")
        if self.decode_seconds_per_sequence < 0 or self.decode_seconds_per_token < 0:
            raise ValueError("decode times must not be below 0")
        if self.output_tokens < 1:
            raise ValueError("`output_tokens` must be at least 1")


class WaitClass(Section):
    """Callers of a `priority` up to `up_to` (and above those of the class before) wait for at most
    `deadline_s`."""

    up_to: int
    deadline_s: Annotated[float, Meta(gt=0, le=3600)]


class AdmissionConfig(Section):
    """Who waits in the gateway while every replica has enough to do.

    That is while each has more than `hold_s` seconds of prefill pending, or as many requests as it
    may. `deadline_s` is how long a request waits at most, where no class says otherwise. At most
    `max_waiting` requests of a model wait in one worker, with bodies of `max_waiting_bytes` in all;
    0 turns waiting off. `weights` of tenants are 1 where none is given.
    """

    hold_s: Annotated[float, Meta(gt=0, le=600)] = 1.5
    deadline_s: Annotated[float, Meta(gt=0, le=3600)] = 10.0
    classes: tuple[WaitClass, ...] = ()
    max_waiting: Annotated[int, Meta(ge=0, le=1_000_000)] = 1000
    max_waiting_bytes: Annotated[int, Meta(ge=1)] = 256 * 1024 * 1024
    weights: dict[str, Annotated[float, Meta(gt=0, le=1_000_000)]] = msgspec.field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        bounds = [one.up_to for one in self.classes]
        if bounds != sorted(set(bounds)):
            raise Contradictions([(".classes", "expected each `up_to` above the one before")])

    def deadline_of(self, priority: int) -> float:
        """Seconds that a caller of `priority` waits at most."""
        for one in self.classes:
            if priority <= one.up_to:
                return one.deadline_s
        return self.deadline_s

    def weight_of(self, tenant: str) -> float:
        return self.weights.get(tenant, 1.0)


class DebugHeaderConfig(Section):
    """Answers to these `tenants` say in `x-headrace-route` why they are from where they are. That
    tells of other tenants' load and of what replicas are called."""

    tenants: tuple[str, ...] = ()


class DisaggregationConfig(Section):
    """When a prompt is prefilled by a replica with that role instead of the one that answers: when
    more than `least_tokens` are not cached there, and it takes no longer, with blocks of
    `transfer_tokens_per_second` being fetched."""

    least_tokens: Annotated[int, Meta(ge=0)] = 256
    transfer_tokens_per_second: Annotated[float, Meta(gt=0)] = 200_000.0


class HostsConfig(Section):
    """`redis`: gateways that have the same Redis for their limits tell each other what they have
    given the replicas, which must have the same ids everywhere."""

    redis: bool = False


class TiersConfig(Section):
    """What a token is worth that an engine holds in memory (`cpu`) or on disk, beside 1 on the GPU;
    0: nothing. Where that is more than nothing and less than in the tier before, each replica takes
    another bit of the prefix index."""

    cpu: Annotated[float, Meta(ge=0, le=1)] = 1.0
    disk: Annotated[float, Meta(ge=0, le=1)] = 0.0

    def __post_init__(self) -> None:
        if self.disk > self.cpu:
            raise ValueError("`disk` must not be above `cpu`: it takes longer to fetch from")

    @property
    def levels(self) -> tuple[tuple[int, float], ...]:
        """The slowest tier of each worth, and that, the best first."""
        levels = [(GPU, 1.0)]
        for tier, worth in ((CPU, self.cpu), (DISK, self.disk)):
            if worth == levels[-1][1]:
                levels[-1] = tier, worth
            elif worth:
                levels.append((tier, worth))
        return tuple(levels)

    @property
    def slower(self) -> int:
        """How many levels there are beyond the best."""
        return len(self.levels) - 1


class RoutingConfig(Section):
    """How a replica is chosen. All durations in seconds, sizes in tokens.

    `objective` is what the operator minds most: the first token, or the pace of everybody's
    output. It stands for a `decode_weight`, lambda of the score, which can be given instead.
    `session_bonus_s`: what the replica that a session was sent to last is favoured by at most.
    Gateways that should hash alike share `secret`.
    """

    policy: Policy = "prefix_affinity"
    objective: Objective = "balanced"
    decode_weight: float | None = None
    tie_window_s: float = 0.010
    block_tokens: int = 64
    index_entries: int = 4_000_000
    default_kv_tokens: int = 500_000
    attention_knee_tokens: int = 60_000
    slow_start_s: float = 30.0
    session_bonus_s: Annotated[float, Meta(ge=0, le=0.25)] = 0.25
    secret: Secret | None = None
    share_cache: ShareCache = "tenant"
    priors: Priors = Priors()
    admission: AdmissionConfig = AdmissionConfig()
    debug_header: DebugHeaderConfig = DebugHeaderConfig()
    disaggregation: DisaggregationConfig = DisaggregationConfig()
    hosts: HostsConfig = HostsConfig()
    tiers: TiersConfig = TiersConfig()

    def __post_init__(self) -> None:
        if self.decode_weight is not None and not 0 <= self.decode_weight <= 10:
            raise ValueError("`decode_weight` must be between 0 and 10")
        if not 0 <= self.tie_window_s <= 1:
            raise ValueError("`tie_window_s` must be between 0 and 1 second")
        if self.block_tokens < 16 or self.block_tokens % 16:
            raise ValueError("`block_tokens` must be a multiple of 16")
        if self.index_entries < 1 or self.default_kv_tokens < self.block_tokens:
            raise ValueError("`index_entries` and `default_kv_tokens` must hold at least one block")
        if self.attention_knee_tokens < 1 or self.slow_start_s < 0:
            raise ValueError("`attention_knee_tokens` must be above 0, `slow_start_s` not below 0")
        if faults := _sharing_faults(self.share_cache, self.secret):
            raise Contradictions(faults)

    @property
    def others_weight(self) -> float:
        """Lambda of the score."""
        return _WEIGHTS[self.objective] if self.decode_weight is None else self.decode_weight


_WEIGHTS: dict[Objective, float] = {"ttft": 0.1, "balanced": 0.2, "tpot": 0.5}


def _sharing_faults(share: ShareCache, secret: Secret | None) -> list[tuple[str, str]]:
    if share == "tenant":
        return []
    faults = []
    if secret is None:
        sentence = "needs `secret`: without it there is no `cache_salt`, and all share"
        faults.append((".share_cache", sentence))
    owners: dict[str, int] = {}
    for number, group in enumerate(share if isinstance(share, tuple) else ()):
        if not group or "" in group:
            faults.append((f".share_cache[{number}]", "expected names of tenants, none empty"))
        for tenant in group:
            if owners.setdefault(tenant, number) != number:
                sentence = f"`{tenant}` is in another group already; a tenant has one"
                faults.append((f".share_cache[{number}]", sentence))
    return faults
