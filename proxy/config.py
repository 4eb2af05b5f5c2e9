"""The sections of the edge itself: where it listens, with which certificate, within what bounds."""

from __future__ import annotations

import os
import re
from typing import Annotated, ClassVar, Literal, Self

import msgspec
from msgspec import Meta

from core.section import Contradictions, OutputPath, Section
from proxy.listen.address import Address, parse_address
from proxy.listen.networks import Networks
from proxy.tls.config import TlsConfig

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Count = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(gt=0, le=1)]
Lateness = Annotated[float, Meta(gt=0, lt=1)]

_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?")
# Not below /v1, which is the API's, and without the dot segments that the gate refuses.
_PATH = re.compile(r"/(?!v1(?:/|$))(?:(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+(?:/|$))*")


class ListenAddress(str):
    """`host:port`, `[IPv6]:port` or `unix:/path`; `parsed` has its parts."""

    __slots__ = ()
    expected: ClassVar[str] = "`host:port`, `[IPv6]:port` or `unix:/path`"
    schema: ClassVar[dict[str, object]] = {"type": "string", "pattern": "^(unix:/.+|.+:[0-9]+)$"}

    @classmethod
    def from_text(cls, text: str, base: str) -> Self:
        parse_address(text)
        return cls(text)

    @property
    def parsed(self) -> Address:
        return parse_address(self)


class Network(str):
    """A network (CIDR), an address, or `unix`."""

    __slots__ = ()
    expected: ClassVar[str] = "a network like 10.0.0.0/8, an address, or `unix`"
    schema: ClassVar[dict[str, object]] = {"type": "string", "minLength": 1}

    @classmethod
    def from_text(cls, text: str, base: str) -> Self:
        Networks([text])
        return cls(text)


class CorsConfig(Section):
    """Web pages of these origins may call the gateway; `*` for every origin."""

    origins: Annotated[tuple[str, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        faults = [
            (f".origins[{index}]", f'expected `*` or an origin like `https://app.example`: "{o}"')
            for index, o in enumerate(self.origins)
            if o != "*" and not _ORIGIN.fullmatch(o)
        ]
        if faults:
            raise Contradictions(faults)


class ListenTimeouts(Section):
    """Seconds. `head_s` and `body_s` count from the first byte and are not put off by more bytes;
    a body must also arrive at `body_min_rate` bytes per second on average. `write_idle_s`: how
    long a client may take nothing of what is sent to it."""

    handshake_s: Seconds = 10.0
    head_s: Seconds = 10.0
    body_s: Seconds = 60.0
    body_min_rate: Annotated[float, Meta(ge=0)] = 1024.0
    keep_alive_s: Seconds = 75.0
    write_idle_s: Seconds = 60.0


class ListenLimits(Section):
    """Sizes in bytes. `max_connections` is for all workers together (None: each worker has at most
    half as many as its file descriptors); the other counts are per worker.
    `max_connections_per_address` counts one client address (None: no limit), `max_streams` the
    requests at a time of one HTTP/2 connection."""

    max_connections: Count | None = None
    max_connections_per_address: Count | None = None
    max_handshakes: Count = 2048
    max_requests_in_flight: Count | None = None
    max_buffered_bytes: Annotated[int, Meta(ge=65_536)] = 256 * 1024 * 1024
    max_header_bytes: Annotated[int, Meta(ge=1024, le=1_048_576)] = 65_536
    max_headers: Annotated[int, Meta(ge=1, le=10_000)] = 100
    max_body_bytes: Annotated[int, Meta(ge=1024, le=1_073_741_824)] = 4 * 1024 * 1024
    max_streams: Annotated[int, Meta(ge=1, le=10_000)] = 100

    def __post_init__(self) -> None:
        if self.max_body_bytes > self.max_buffered_bytes:
            raise ValueError(
                f"`max_buffered_bytes` ({self.max_buffered_bytes}) holds not even one body of "
                f"`max_body_bytes` ({self.max_body_bytes}); raise it to several of them"
            )


def _check_ascending(*thresholds: float) -> None:
    if list(thresholds) != sorted(thresholds):
        raise ValueError("the thresholds must ascend: close <= refuse <= pause")


class SharesConfig(Section):
    """Parts of what there is, from which on connections are closed after their answer, new
    requests are refused, and no connection is accepted."""

    close: Share
    refuse: Share
    pause: Share

    def __post_init__(self) -> None:
        _check_ascending(self.close, self.refuse, self.pause)


class LagConfig(Section):
    """Seconds by which the event loop is late on average, from which on new requests are refused
    and no connection is accepted."""

    refuse: Lateness = 0.25
    pause: Lateness = 0.5

    def __post_init__(self) -> None:
        _check_ascending(self.refuse, self.pause)


class OverloadConfig(Section):
    """When a worker sheds load: by file descriptors, by memory (of the control group's limit, or
    of the host's if there is none), by the lateness of its event loop."""

    descriptors: Literal["off"] | SharesConfig = SharesConfig(close=0.8, refuse=0.9, pause=0.95)
    memory: Literal["off"] | SharesConfig = SharesConfig(close=0.85, refuse=0.92, pause=0.96)
    loop_lag_s: Literal["off"] | LagConfig = LagConfig()


class ListenConfig(Section):
    """Where clients connect. `tls` has no default: going without must be asked for by name.
    `trusted_proxies` are believed about who their clients are: by headers, and with
    `proxy_protocol` by the PROXY protocol, which then everybody must speak."""

    addresses: Annotated[tuple[ListenAddress, ...], Meta(min_length=1)]
    tls: Literal["off"] | TlsConfig
    http2_engine: Literal["nghttp2", "h2", "off"] = "nghttp2"
    health_path: str | None = None
    cors: CorsConfig | None = None
    server_timing: Literal["asked", "always", "off"] = "asked"
    timeouts: ListenTimeouts = ListenTimeouts()
    limits: ListenLimits = ListenLimits()
    overload: OverloadConfig = OverloadConfig()
    trusted_proxies: tuple[Network, ...] = ()
    proxy_protocol: Literal["off", "required"] = "off"

    def __post_init__(self) -> None:
        faults: list[tuple[str, str]] = []
        for index, address in enumerate(self.addresses):
            if address in self.addresses[:index] and address.parsed.port != 0:
                faults.append((f".addresses[{index}]", f"`{address}` is given twice"))
        if self.health_path is not None and not _PATH.fullmatch(self.health_path):
            expected = "expected a path like /healthz, not below /v1"
            faults.append((".health_path", f'{expected}: "{self.health_path}"'))
        if self.proxy_protocol == "required" and not self.trusted_proxies:
            expected = "needs `trusted_proxies`: only from those the PROXY protocol is taken"
            faults.append((".proxy_protocol", expected))
        if faults:
            raise Contradictions(faults)


class AdminConfig(Section):
    """Where metrics and readiness are served, in plain HTTP and to whoever can connect."""

    address: ListenAddress


class AccessTarget(str):
    """`stdout`, `stderr`, `off` or the absolute path of a file."""

    __slots__ = ()
    expected: ClassVar[str] = "`stdout`, `stderr`, `off` or a path with a slash"
    schema: ClassVar[dict[str, object]] = {"type": "string"}

    @classmethod
    def from_text(cls, text: str, base: str) -> Self:
        if text in ("stdout", "stderr", "off"):
            return cls(text)
        if "/" not in text or text.endswith("/") or "\0" in text:
            raise ValueError(f'expected {cls.expected}, got "{text}"')
        return cls(os.path.normpath(os.path.join(base, text)))


class LogConfig(Section):
    """`access`: where one JSON line for each exchange goes; `level`: of all other messages, which
    go to stderr."""

    access: AccessTarget = msgspec.field(default_factory=lambda: AccessTarget("stdout"))
    level: Literal["debug", "info", "warning", "error"] = "info"


class UsageFile(OutputPath):
    """A file that lines are appended to."""

    __slots__ = ()


class UsageConfig(Section):
    """Where one JSON line for each exchange that used anything goes, for billing: to a `file`, or
    to a stream in the Redis of the limits, which keeps about the newest `max_entries`."""

    file: UsageFile | None = None
    redis_stream: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:{}-]{1,128}$")] | None = None
    max_entries: Annotated[int, Meta(ge=1000, le=1_000_000_000)] = 1_000_000

    def __post_init__(self) -> None:
        if (self.file is None) == (self.redis_stream is None):
            raise ValueError("give either `file` or `redis_stream`")
