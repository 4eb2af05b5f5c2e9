"""One request and the response being written: the seam between a protocol and the pipeline.

HTTP/1.1 and HTTP/2 each implement `Exchange`; the pipeline and the relay know nothing else of
the client's side. All calls are plain calls on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

Header = tuple[bytes, bytes]
"""Lower-case name and value, both without surrounding white space."""


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """Who a client is by the certificate that it showed. `subject` as in RFC 4514, `fingerprint`
    SHA-256 of the certificate in hex, `not_after` Unix seconds."""

    subject: str
    dns_names: tuple[str, ...]
    uri_names: tuple[str, ...]
    fingerprint: str
    not_after: float


class Handshake(NamedTuple):
    """TLS, from the accepted connection to the end of its handshake: so many `seconds`."""

    seconds: float
    resumed: bool


class Request(msgspec.Struct):
    """A complete request that passed the gate. `path` is without query, `headers` are without
    Content-Length; `received_at`, `head_at` and `complete_at` are monotonic seconds of the first
    byte, of the last one of the head, and of the last one of the body. `peer` is the client's
    address, and `scheme` what it used, as far as trusted proxies tell (None: they do not).
    `client_certificate`: valid, and of an authority that is trusted; None when there is none or
    none is asked for. `handshake`: of the first request of a connection with TLS. `values`: the
    first value of each of the headers, where whoever read them has that at hand (a client repeats
    its headers from request to request)."""

    method: str
    path: str
    query: str
    headers: Sequence[Header]
    body: bytes
    peer: str
    version: str
    received_at: float
    complete_at: float
    head_at: float = 0.0
    scheme: str | None = None
    client_certificate: ClientCertificate | None = None
    values: Mapping[bytes, bytes] | None = None
    handshake: Handshake | None = None

    def header(self, name: bytes) -> bytes | None:
        """The first value of `name` (lower-case), or None."""
        if self.values is not None:
            return self.values.get(name)
        for key, value in self.headers:
            if key == name:
                return value
        return None


class FlowSource(Protocol):
    """Whatever feeds an exchange: told to stop while the client reads too slowly."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Exchange(Protocol):
    """One request being answered.

    `start` once, then `write` any number of times, then exactly one of `finish` (a complete
    answer) and `abort` (the client must see that it is not complete). Calls after the client
    has gone are ignored. `gone` turns True when the client left; the task that handles the
    exchange is cancelled at that moment. `source` is paused and resumed for backpressure.
    """

    id: str
    request: Request
    started: bool
    gone: bool
    bytes_sent: int
    source: FlowSource | None

    @property
    def framed(self) -> Callable[[bytes], object] | None:
        """Where chunks in the framing of HTTP/1.1 may be written past the exchange, as long as
        neither its last byte was written nor its source paused; None: they may not. They count for
        `bytes_sent` when whoever writes them adds them."""

    def start(self, status: int, headers: Sequence[Header], length: int | None) -> None:
        """Send the head. `length`: Content-Length, or None when it is not known."""

    def write(self, data: bytes) -> None: ...

    def finish(self, data: bytes = b"") -> None:
        """Send the last bytes of a complete answer."""

    def abort(self) -> None: ...
