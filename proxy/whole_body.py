"""An answer that is not streamed: collected, then sent in one piece, so that a replica that
fails half-way can still be replaced. A very large one flows once it passes the bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from core.errors import NotFound, UpstreamAnswered, UpstreamError
from proxy.surfaces.usage import usage_in

if TYPE_CHECKING:
    from proxy.relay import Relay

_MAX_COLLECTED = 4 * 1024 * 1024
_TAIL = 16_384
_RETRYABLE = frozenset({502, 503})
_REFUSED_OUR_KEY = frozenset({401, 403})
# A vLLM that drains (`--shutdown-timeout`) is healthy by its own word, and refuses so what is new.
_ENDS = b"cannot schedule new futures after shutdown"


class WholeBody:
    """The body of one response that is not SSE."""

    __slots__ = ("_any_answer", "_most", "_parts", "_relay", "_size", "_tail", "usage")

    def __init__(self, relay: Relay, *, flows: bool = False, any_answer: bool = False) -> None:
        """`flows`: from its first bytes on. `any_answer`: it may also be empty."""
        self._any_answer = any_answer
        self._most = 0 if flows else _MAX_COLLECTED
        self._relay = relay
        self._parts: list[bytes] = []
        self._size = 0
        self._tail = b""
        self.usage: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<WholeBody bytes={self._size}>"

    @property
    def progress(self) -> int:
        """How much has come of the answer."""
        return self._size

    def part(self) -> None:
        """The relay has ended; nothing more comes."""
        del self._relay

    def push(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._size > self._most:
            self._relay.begin()
            self._relay.start(None)
            self._relay.use(self._flow)
            whole = b"".join(self._parts)
            self._size = 0  # what flows is counted there
            self._flow(whole)
            self._parts.clear()

    def _flow(self, data: bytes) -> None:
        self._size += len(data)
        self._tail = (self._tail + data)[-_TAIL:]
        self._relay.write(data)

    def end(self) -> None:
        relay = self._relay
        if relay.committed:
            self.usage = usage_in(self._tail)
            relay.deliver(b"")
            return
        body = b"".join(self._parts)
        failure = _failure(relay.status, body)
        if relay.status == 404 and relay.seeking:
            relay.fail(NotFound(_message(body) or "The replica does not hold it."))
            return
        if failure is not None:
            relay.fail(failure)
            return
        if not body and relay.status < 400 and not self._any_answer:
            relay.fail(UpstreamError("The replica answered nothing."))
            return
        if relay.status < 400:  # a refused request produced nothing and costs nothing
            relay.begin()
        self.usage = usage_in(body[-_TAIL:]) or usage_in(body)
        relay.start(len(body))
        relay.deliver(body)


class NoStream:
    """An answer in one piece to a client that was promised a stream: it becomes the failure that
    ends it."""

    __slots__ = ("_data", "_relay", "_status", "usage")

    def __init__(self, relay: Relay, status: int) -> None:
        self._relay = relay
        self._status = status
        self._data = b""
        self.usage: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<NoStream status={self._status}>"

    @property
    def progress(self) -> int:
        return len(self._data)

    def part(self) -> None:
        """The relay has ended; nothing more comes."""
        del self._relay

    def push(self, data: bytes) -> None:
        if len(self._data) < _TAIL:  # an error is far smaller
            self._data += data

    def end(self) -> None:
        status = self._status
        failure = _failure(status, self._data)
        if failure is None:
            text = _message(self._data) or f"The replica answered {status} without a stream."
            failure = UpstreamAnswered(text, status=status if status >= 400 else 502)
        self._relay.fail(failure)


def _failure(status: int, body: bytes) -> UpstreamError | None:
    """A status that is the replica's failure rather than an answer to the client."""
    if status in _REFUSED_OUR_KEY:
        return UpstreamError("The replica refused the gateway's credentials.", code="upstream_auth")
    if status == 500 and body.find(_ENDS) >= 0:
        return UpstreamAnswered("The replica is shutting down.", status=503)
    if status not in _RETRYABLE:
        return None
    message = _message(body) or f"The replica answered {status}."
    return UpstreamAnswered(message, status=status)


def _message(body: bytes) -> str | None:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(document, dict):
        return None
    # SGLang does not wrap it.
    error = document if document.get("object") == "error" else document.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else None
