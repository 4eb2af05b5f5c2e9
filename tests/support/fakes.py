"""Stand-ins for the two sides of the relay and for the packages around the pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from core.claim import NOBODY, Claim
from core.errors import Unavailable, UpstreamError
from core.exchange import FlowSource, Header, Request
from core.principal import Principal
from core.prompt import Prompt
from core.replica import Replica

EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,'
    b'"delta":{"content":"hello"},"finish_reason":null}]}\n\n'
)
USAGE_EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":7,'
    b'"total_tokens":10,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
)
DONE = b"data: [DONE]\n\n"
OVERLOADED = (
    b'data: {"error": {"message": "The engine is busy.", "type": "Service Unavailable", '
    b'"param": null, "code": 503}}\n\n'
)
SSE_HEADERS: list[Header] = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON_HEADERS: list[Header] = [(b"content-type", b"application/json")]


def request(
    method: str = "POST",
    path: str = "/v1/chat/completions",
    headers: Sequence[Header] = (),
    body: bytes = b"{}",
) -> Request:
    return Request(method, path, "", headers, body, "127.0.0.1", "1.1", 0.0, 0.0)


@dataclass
class Timeouts:
    """A relay's deadlines, in seconds."""

    first_token_s: float = 10.0
    first_token_factor: float = 0.0
    response_s: float = 20.0
    idle_s: float = 5.0
    heartbeat_s: float = 15.0
    total_s: float | None = None


class FakeExchange:
    """Records what a client would see. `ended`: None, "finished" or "aborted"."""

    def __init__(self, request: Request) -> None:
        self.id = "feed" * 8
        self.request = request
        self.started = False
        self.gone = False
        self.bytes_sent = 0
        self.source: FlowSource | None = None
        self.status = 0
        self.headers: list[Header] = []
        self.length: int | None = None
        self.body = b""
        self.writes = 0
        self.ended: str | None = None
        self.framed: Callable[[bytes], object] | None = None

    def start(self, status: int, headers: Sequence[Header], length: int | None) -> None:
        assert not self.started, "started twice"
        self.started = True
        self.status = status
        self.headers = list(headers)
        self.length = length

    def write(self, data: bytes) -> None:
        assert self.started
        assert self.ended is None, "written after the end"
        self.body += data
        self.bytes_sent += len(data)
        self.writes += 1

    def finish(self, data: bytes = b"") -> None:
        assert self.ended is None, "ended twice"
        if data:
            self.write(data)
        self.ended = "finished"

    def abort(self) -> None:
        assert self.ended is None, "ended twice"
        self.ended = "aborted"


class FakeUpstream:
    """An upstream connection that a test drives: `handler` is what it was given."""

    def __init__(self, *, reused: bool = False) -> None:
        self.reused = reused
        self.handler: Any = None
        self.sent: list[tuple[bytes, bytes, bytes]] = []
        self.aborted = False
        self.paused = False

    def send(
        self, method: bytes, path: bytes, headers: Sequence[Header], body: bytes, handler: Any
    ) -> None:
        self.sent.append((method, path, body))
        self.handler = handler

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def divert(self, take: Callable[[bytes], None]) -> Callable[[bytes], None] | None:
        return None


Script = Callable[[FakeUpstream], None]


class FakePool:
    """Connections that answer by script, one script per try; a script may be an error."""

    def __init__(self, *scripts: Script | UpstreamError, reused: bool = False) -> None:
        self.scripts = list(scripts)
        self.reused = reused
        self.connections: list[FakeUpstream] = []
        self.asked: list[tuple[str, bool]] = []

    async def connect(self, replica_id: str, fresh: bool = False) -> FakeUpstream:
        self.asked.append((replica_id, fresh))
        script = self.scripts.pop(0)
        if isinstance(script, UpstreamError):
            raise script
        connection = FakeUpstream(reused=self.reused and not fresh)
        self.connections.append(connection)
        asyncio.get_running_loop().call_soon(script, connection)
        return connection


class FakeLease:
    def __init__(self, replica_id: str, router: FakeRouter) -> None:
        self.replica = Replica(id=replica_id, model="m")
        self.predicted_cached = 0
        self.outlived = False
        self.predicted_first_token_s = self.disturbance_s = 0.0
        self.first_at: float | None = None
        self.settled: tuple[int, int | None, int] | None = None
        self._router = router

    def moved(self) -> None:
        self.was_moved = True

    def explain(self) -> str:
        return f"{self.replica.id}: as asked for"

    def first_token(self, now: float) -> None:
        self.first_at = now

    def settle(self, *, prompt_tokens: int, cached_tokens: int | None, output_tokens: int) -> None:
        self.settled = (prompt_tokens, cached_tokens, output_tokens)

    def __enter__(self) -> FakeLease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._router.held -= 1


class FakeRouter:
    """Leases replicas in order, without those excluded; `held` must come back to 0."""

    def __init__(self, *replica_ids: str) -> None:
        self.replica_ids = replica_ids
        self.leases: list[FakeLease] = []
        self.held = 0
        self.on_lease: Callable[[FakeLease, int], object] = lambda lease, number: None
        self.queues: dict[str, object] = {}

    def pick(
        self,
        *,
        model: str,
        prompt: Prompt,
        max_output_tokens: int | None,
        exclude: Sequence[str] = (),
    ) -> FakeLease:
        for replica_id in self.replica_ids:
            if replica_id not in exclude:
                lease = FakeLease(replica_id, self)
                self.leases.append(lease)
                self.held += 1
                self.on_lease(lease, len(self.leases))
                return lease
        raise Unavailable("No replica is left.")

    async def lease(
        self,
        *,
        model: str,
        prompt: Prompt,
        max_output_tokens: int | None,
        exclude: Sequence[str] = (),
        claim: Claim = NOBODY,
        enter: Callable[[str, float], None] | None = None,
    ) -> FakeLease:
        return self.pick(
            model=model, prompt=prompt, max_output_tokens=max_output_tokens, exclude=exclude
        )


class FakeHealth:
    def __init__(self) -> None:
        self.good: list[str] = []
        self.bad: list[str] = []

    def succeeded(self, replica_id: str) -> None:
        self.good.append(replica_id)

    def failed(self, replica_id: str, error: UpstreamError) -> None:
        self.bad.append(replica_id)


class FakeReservation:
    def __init__(self) -> None:
        self.headers: tuple[Header, ...] = ((b"x-ratelimit-limit-requests", b"10"),)
        self.reserved_tokens = 50
        self.degraded = False
        self.shadow_refusals: tuple[str, ...] = ()
        self.output: Callable[[], int] | None = None
        self.settled: tuple[int, int, int] | None = None
        self.abandoned = False

    def follow(self, output: Callable[[], int]) -> None:
        self.output = output

    def settle(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        if not self.abandoned and self.settled is None:
            self.settled = prompt_tokens, cached_tokens, output_tokens

    def __enter__(self) -> FakeReservation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.settled is None:
            self.abandoned = True


class FakeLimiter:
    def __init__(self) -> None:
        self.reservations: list[FakeReservation] = []
        self.asked: list[dict[str, Any]] = []

    async def reserve(self, principal: Principal, **asked: Any) -> FakeReservation:
        self.asked.append({"tenant": principal.tenant, "tier": principal.tier, **asked})
        self.reservations.append(FakeReservation())
        return self.reservations[-1]

    def cost(self, model: str, prompt: int, cached: int, output: int) -> float | None:
        return prompt / 2


class FakePrompter:
    def __init__(self, length: int = 7) -> None:
        self.length = length
        self.tokenized = 0

    async def chat(self, model: str, doc: dict[str, Any], salt: str) -> Prompt:
        self.tokenized += 1
        return Prompt(model, self.length, self.length, True, (), 64)

    async def completion(self, model: str, doc: dict[str, Any], salt: str) -> Prompt:
        return await self.chat(model, doc, salt)

    def check_length(self, model: str, prompt: Prompt, max_tokens: int | None) -> None:
        pass


class FakeAuthenticator:
    def __init__(self, principal: Principal | Exception) -> None:
        self.principal = principal

    async def authenticate(self, request: Request) -> Principal:
        if isinstance(self.principal, Exception):
            raise self.principal
        return self.principal


def stream(*parts: bytes, end: bool = True) -> Script:
    """A replica that streams `parts`, each as one read."""

    def play(upstream: FakeUpstream) -> None:
        handler = upstream.handler
        handler.on_head(200, SSE_HEADERS)
        for part in parts:
            handler.on_body(part)
        if end:
            handler.on_end()

    return play


def whole(status: int, body: bytes) -> Script:
    """A replica that answers in one piece."""

    def play(upstream: FakeUpstream) -> None:
        upstream.handler.on_head(status, JSON_HEADERS)
        upstream.handler.on_body(body)
        upstream.handler.on_end()

    return play


def lost(error: UpstreamError, *parts: bytes) -> Script:
    """A replica whose connection fails after `parts`."""

    def play(upstream: FakeUpstream) -> None:
        if parts:
            upstream.handler.on_head(200, SSE_HEADERS)
            for part in parts:
                upstream.handler.on_body(part)
        upstream.handler.on_failed(error)

    return play
