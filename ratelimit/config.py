"""The section `limits`."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta

from core.section import Contradictions, FilePath, Secret, Section
from ratelimit.endpoint import parse

Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
"""A number of requests or tokens (see `bucket.MAX_TOKENS`)."""
Seconds = Annotated[float, Meta(gt=0)]

MAX_BURST_MINUTES = 1440
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")


class RedisConfig(Section):
    """One Redis or Valkey server.

    `url`: redis://host:6379/0, rediss://host:6380/0 or unix:///path?db=0, with a user name if need
    be. `ca`: certificates to trust with rediss (default: the system's). `deadline_s` bounds what a
    call may add to a request. After `failures_to_open` failures in a row the server is left alone
    and tried again in the background, at the latest every `retry_max_s`.
    """

    url: str
    password: Secret | None = None
    ca: FilePath | None = None
    deadline_s: Annotated[float, Meta(gt=0, le=1)] = 0.02
    connect_timeout_s: Annotated[float, Meta(gt=0, le=2)] = 1.0
    failures_to_open: Annotated[int, Meta(ge=1, le=100)] = 3
    retry_max_s: Annotated[float, Meta(gt=0, le=3)] = 2.0
    key_prefix: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,64}$")] = "headrace"

    def __post_init__(self) -> None:
        endpoint = parse(self.url)
        if self.ca is not None and not endpoint.tls:
            raise ValueError("`ca` needs a rediss:// url")


class RedisStoreConfig(Section):
    redis: RedisConfig


class Rule(Section):
    """One limit. It holds for each tenant and model alone, or with `per: [tenant]` for all models
    of a tenant together.

    `tenants`, `tiers`, `models`: whom it concerns (empty: all). Bursts are the buckets' sizes, by
    default one minute's worth. `on_store_failure`: `local` counts in this process alone, `open`
    lets everything pass, `closed` answers 503. `lease_s`: what a request has reserved is given back
    after this time should the gateway die; longer answers are charged when they end.
    """

    name: str
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    requests_burst: Count | None = None
    tokens_burst: Count | None = None
    per: tuple[Literal["tenant", "model"], ...] = ("tenant", "model")
    tenants: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    on_store_failure: Literal["local", "open", "closed"] = "local"
    lease_s: Annotated[float, Meta(ge=1, le=86_400)] = 300.0

    def __post_init__(self) -> None:
        faults = []
        if not _NAME.match(self.name):
            faults.append((".name", "expected 1 to 64 letters, digits, `_`, `.` or `-`"))
        if self.requests_per_minute is None and self.tokens_per_minute is None:
            faults.append(("", "a rule needs requests_per_minute or tokens_per_minute"))
        if "tenant" not in self.per or len(set(self.per)) != len(self.per):
            faults.append((".per", "expected [tenant] or [tenant, model]"))
        for kind in ("requests", "tokens"):
            rate = getattr(self, f"{kind}_per_minute")
            burst = getattr(self, f"{kind}_burst")
            if burst is None:
                continue
            if rate is None:
                faults.append((f".{kind}_burst", f"means nothing without {kind}_per_minute"))
            elif burst > rate * MAX_BURST_MINUTES:
                faults.append((f".{kind}_burst", "expected at most one day's worth"))
        if faults:
            raise Contradictions(faults)


class LimitsConfig(Section):
    """How much callers may use.

    A request is charged its prompt and its `max_tokens` before it runs, and what it really used
    when it ends. Of the output at most `output_reserve_cap_tokens` are charged beforehand, and
    `output_estimate_tokens` when the request does not say.
    """

    store: Literal["memory"] | RedisStoreConfig = "memory"
    rules: tuple[Rule, ...] = ()
    output_estimate_tokens: Annotated[int, Meta(ge=0, le=1_000_000)] = 512
    output_reserve_cap_tokens: Annotated[int, Meta(ge=0, le=1_000_000)] = 4096

    def __post_init__(self) -> None:
        names = [rule.name for rule in self.rules]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two rules have the same name: {', '.join(twice)}")
