"""What is to be delivered to one client, and what came of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from core.claim import NOBODY, Claim
from core.exchange import Header
from core.prompt import Prompt
from proxy.relay import Relay
from proxy.surfaces.openai import OPENAI
from proxy.surfaces.shape import Shape

_MOST_TOKENS = 2**31  # beyond what any exchange can use: such a count is a fault


class TokenEstimates(Protocol):
    """What is known of a model's answers, for those that come without usage."""

    def learn(self, model: str, events: int, tokens: int) -> None: ...

    def tokens(self, model: str, events: int) -> int: ...


class Delivery(msgspec.Struct):
    """What is sent upstream, and what came of it. Token counts are the replica's own where it
    reported them; otherwise output is estimated from events, of which the first `empty_events` hold
    no content (a chat begins with the role alone, of each choice). `ids`: those of the prompt's
    tokens, where they can stand for it. `exclude`: replicas that are not
    asked. `explained`: the answer says why it is from there. `seeking`: a replica that answers 404
    raises NotFound. `raw`: the answer is of any kind. `on_start` is told which replica answers.
    `first_token_by`: when it is due; with `refuse_late` it is not tried when it is predicted later.
    `begun`: the replica produced output. `usage_known`: it reported its counts. `relay`: the try
    that is running. A `Struct` because it has many fields: it is made in a quarter of the time."""

    path: bytes
    headers: Sequence[Header]
    body: bytes
    prompt: Prompt
    max_output_tokens: int | None
    stream: bool
    strip_usage: bool
    own_headers: Sequence[Header]
    ids: bytes | None = None
    claim: Claim = NOBODY
    empty_events: int = 0
    shape: Shape = OPENAI
    method: bytes = b"POST"
    exclude: Sequence[str] = ()
    seeking: bool = False
    raw: bool = False
    on_start: Callable[[str], None] | None = None
    limit_headers: Sequence[Header] = ()
    explained: bool = False
    first_token_by: float | None = None
    refuse_late: bool = False
    begun: bool = False
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    output_tokens: int = 0
    usage_known: bool = False
    failure: str | None = None
    relay: Relay | None = None

    def take_stock(
        self, usage: dict[str, Any] | None, content_events: int, estimates: TokenEstimates
    ) -> None:
        """Note the final counts of a try that began, and learn from those that are known."""
        model, events = self.prompt.model, max(0, content_events - self.empty_events)
        output_tokens = -1 if usage is None else _count(usage.get("completion_tokens"), -1)
        self.usage_known = output_tokens >= 0
        if self.usage_known:
            if self.max_output_tokens != 0:  # where nothing is generated there is nothing to learn
                estimates.learn(model, events, output_tokens)
        else:
            output_tokens = estimates.tokens(model, events)
        self.prompt_tokens, self.output_tokens = self.prompt.length, output_tokens
        if usage is None:
            return
        self.prompt_tokens = _count(usage.get("prompt_tokens"), self.prompt.length)
        details = usage.get("prompt_tokens_details")
        cached = _count(details.get("cached_tokens"), -1) if isinstance(details, dict) else -1
        self.cached_tokens = None if cached < 0 else min(cached, self.prompt_tokens)


def _count(value: object, otherwise: int) -> int:
    # `type`, because True is an int too.
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else otherwise
