"""What the pipeline works with: its seams, and the objects on the other side of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from core.clock import Clock
from core.exchange import Header, Request
from core.principal import Principal
from core.prompt import Prompt
from proxy.body_rules import BodyRules
from proxy.catalog import Catalog
from proxy.cors import Cors
from proxy.dispatch import Dispatcher
from proxy.observe import Observer
from proxy.passthrough import PassthroughRule
from proxy.stored import Stored
from proxy.turns import Turns
from proxy.variants import Variants


class Authenticator(Protocol):
    async def authenticate(self, request: Request) -> Principal: ...


class Prompter(Protocol):
    async def chat(self, model: str, doc: dict[str, Any], salt: str) -> Prompt: ...

    async def completion(self, model: str, doc: dict[str, Any], salt: str) -> Prompt: ...

    def check_length(self, model: str, prompt: Prompt, max_tokens: int | None) -> None: ...


class Reservation(AbstractContextManager["Reservation"], Protocol):
    @property
    def headers(self) -> Sequence[Header]: ...

    @property
    def reserved_tokens(self) -> int: ...

    @property
    def degraded(self) -> bool: ...

    @property
    def shadow_refusals(self) -> Sequence[str]: ...

    def follow(self, output: Callable[[], int]) -> None: ...

    def settle(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None: ...


class Admission(Protocol):
    @property
    def draining(self) -> bool: ...

    def check_request(self) -> None:
        """Raises GatewayError when there is too much to do."""


class Limiter(Protocol):
    async def reserve(
        self,
        principal: Principal,
        *,
        model: str,
        prompt_tokens: int,
        max_output_tokens: int | None,
        route: str,
        address: str,
    ) -> Reservation: ...

    def cost(self, model: str, prompt: int, cached: int, output: int) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that the pipeline works with. `salt_of`: the caller's `cache_salt`. `prioritized`:
    models whose replicas are told the callers' priority. `elsewhere`: those whose replicas know
    OpenAI's fields alone. `explained`: tenants who are told why their answers are from where they
    are. `turns` are the worker's. `stored`: None where no response can be asked for again.
    `variants`: None where each model answers for itself. `passthrough`: by path."""

    authenticator: Authenticator
    catalog: Catalog
    prompter: Prompter
    limiter: Limiter
    dispatcher: Dispatcher
    observer: Observer
    admission: Admission
    cors: Cors
    health_path: str | None
    salt_of: Callable[[Principal], str]
    clock: Clock
    body_rules: BodyRules | None = None
    prioritized: frozenset[str] = frozenset()
    elsewhere: frozenset[str] = frozenset()
    explained: frozenset[str] = frozenset()
    turns: Turns = field(default_factory=Turns)
    stored: Stored | None = None
    variants: Variants | None = None
    passthrough: Mapping[str, PassthroughRule] = field(default_factory=dict)
