"""Has prompts prefilled by replicas that do only that. Performs: one exchange for each.

Nothing is lost when that fails: the replica that answers then prefills by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from core.claim import Claim
from core.errors import GatewayError, UpstreamError, UpstreamReset, UpstreamTimeout
from core.exchange import Header
from core.metrics import Metrics
from core.prompt import Prompt
from core.replica import Replica, prefill_name
from proxy.access_log import AccessRecord
from proxy.flow import RelayTimeouts, Watchdog
from proxy.surfaces.usage import usage_in
from proxy.transfer import decode_body, may_split, params_of, prefill_body

_MOST_BYTES = 1024 * 1024


class Leg(AbstractContextManager["Leg"], Protocol):
    """A replica held for one leg. `moved`: its prompt was prefilled elsewhere. `outlived`: it has
    left the configuration since."""

    @property
    def replica(self) -> Replica: ...

    @property
    def predicted_cached(self) -> int: ...

    @property
    def predicted_first_token_s(self) -> float: ...

    @property
    def disturbance_s(self) -> float: ...

    @property
    def outlived(self) -> bool: ...

    def moved(self) -> None: ...

    def first_token(self, now: float) -> None: ...

    def settle(
        self, *, prompt_tokens: int, cached_tokens: int | None, output_tokens: int
    ) -> None: ...


class Router(Protocol):
    def pick(self, *, model: str, prompt: Prompt, max_output_tokens: int | None) -> Leg: ...


class Connection(Protocol):
    def send(
        self,
        method: bytes,
        path: bytes,
        headers: Sequence[Header],
        body: bytes,
        handler: Collected,
    ) -> None: ...

    def abort(self) -> None: ...


class Pool(Protocol):
    async def connect(self, replica_id: str, fresh: bool = False) -> Connection: ...


class Health(Protocol):
    def succeeded(self, replica_id: str) -> None: ...

    def failed(self, replica_id: str, error: UpstreamError) -> None: ...


class Sent(Protocol):
    """What of a delivery the leg needs."""

    path: bytes
    headers: Sequence[Header]
    body: bytes
    prompt: Prompt
    claim: Claim


class Collected:
    """The answer of one leg. Its deadline is the watchdog's to keep."""

    def __init__(self, deadline_at: float) -> None:
        self.deadline_at = deadline_at
        self.status = 0
        self._parts: list[bytes] = []
        self._size = 0
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<Collected {self.status}, {self._size} bytes>"

    @property
    def progress(self) -> int:
        return self.status + self._size

    def on_head(self, status: int, headers: list[Header]) -> None:
        self.status = status

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        self._parts.append(data)
        if self._size > _MOST_BYTES:
            self.on_failed(UpstreamError("The answer of a prefill is too large."))

    def on_end(self) -> None:
        if not self.done.done():
            self.done.set_result(b"".join(self._parts))

    def on_failed(self, error: UpstreamError) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def on_deadline(self, now: float) -> None:
        self.on_failed(UpstreamTimeout("The prefill took too long.", phase="first_token"))


class Prefills:
    """The legs of the `models` that have replicas which only prefill. `least_tokens` and
    `tokens_per_second`: what is not worth it, and how fast blocks are fetched. `others_weight`:
    lambda of the score, by which a prefill counts that delays those who are being answered."""

    def __init__(
        self,
        models: frozenset[str],
        *,
        router: Router,
        pool: Pool,
        health: Health,
        timeouts: RelayTimeouts,
        watchdog: Watchdog,
        metrics: Metrics,
        least_tokens: int,
        tokens_per_second: float,
        others_weight: float,
    ) -> None:
        self._models = models
        self._router = router
        self._pool = pool
        self._health = health
        self._timeouts = timeouts
        self._watchdog = watchdog
        self._least_tokens = least_tokens
        self._tokens_per_second = tokens_per_second
        self._others_weight = others_weight
        self._legs = metrics.counter(
            "headrace_prefill_legs_total",
            "Requests that could be prefilled elsewhere, by what came of it.",
            ("outcome",),
        )

    def __repr__(self) -> str:
        return f"<Prefills {sorted(self._models)}>"

    async def prepare(
        self, model: str, sent: Sent, decode: Leg, record: AccessRecord
    ) -> tuple[bytes, int | None]:
        """The body for the replica of `decode`, and how many tokens were cached where its prompt
        was prefilled (None: it is not, or nobody knows)."""
        prompt = sent.prompt
        batch = prompt.longest != prompt.length
        if model not in self._models or not may_split(sent.path, sent.body, batch=batch):
            return sent.body, None
        uncached = prompt.length - decode.predicted_cached
        if uncached <= self._least_tokens:
            self._legs.labels("cached").inc()
            return sent.body, None
        try:
            # Never waits: while those are busy, it is done where it is answered.
            leg = self._router.pick(model=prefill_name(model), prompt=prompt, max_output_tokens=1)
        except GatewayError:
            self._legs.labels("unavailable").inc()
            return sent.body, None
        with leg:
            here_s = decode.predicted_first_token_s + self._others_weight * decode.disturbance_s
            there_s = leg.predicted_first_token_s + uncached / self._tokens_per_second
            if there_s >= here_s:
                self._legs.labels("slower").inc()
                return sent.body, None
            decode.moved()
            record.prefill_replica = leg.replica.id
            try:
                answer = await self._ask(sent, leg)
            except UpstreamError as error:
                if not leg.outlived:
                    self._health.failed(leg.replica.id, error)
                answer = None
            params, cached = self._taken(answer, leg, prompt)
        self._legs.labels("used" if params is not None else "failed").inc()
        return (sent.body if params is None else decode_body(sent.body, params)), cached

    def _taken(
        self, answer: bytes | None, leg: Leg, prompt: Prompt
    ) -> tuple[dict[str, Any] | None, int | None]:
        if answer is None:
            return None, None
        leg.first_token(time.monotonic())
        usage = usage_in(answer) or {}
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        if type(cached) is not int or not 0 <= cached <= prompt.length:
            cached = None
        leg.settle(prompt_tokens=prompt.length, cached_tokens=cached, output_tokens=1)
        return params_of(answer), cached

    async def _ask(self, sent: Sent, leg: Leg) -> bytes | None:
        """The answer of the leg's replica; None where it refused, as the other one will. Raises
        UpstreamError."""
        body = prefill_body(sent.body)
        try:
            return await self._exchange(sent, leg, body, fresh=False)
        except UpstreamReset as error:
            if not error.reused or error.answered:
                raise
            return await self._exchange(sent, leg, body, fresh=True)

    async def _exchange(self, sent: Sent, leg: Leg, body: bytes, *, fresh: bool) -> bytes | None:
        timeouts = self._timeouts
        patience_s = timeouts.first_token_factor * leg.predicted_first_token_s
        connection = await self._pool.connect(leg.replica.id, fresh)
        deadline_at = time.monotonic() + max(timeouts.first_token_s, patience_s)
        collected = Collected(deadline_at)
        self._watchdog.add(collected)
        try:
            connection.send(b"POST", sent.path, sent.headers, body, collected)
            answer = await collected.done
        finally:
            connection.abort()  # of no effect after a complete answer
            self._watchdog.discard(collected)
        if collected.status >= 500:
            raise UpstreamError(f"The replica answered {collected.status} to a prefill.")
        if not leg.outlived:
            self._health.succeeded(leg.replica.id)
        return answer if collected.status == 200 else None
