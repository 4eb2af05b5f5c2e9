"""One JSON line per exchange; never a prompt, a completion or a credential.

Lines wait up to 50 ms and are written together; when the target is full or gone they are dropped
and counted, and serving goes on.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import repeat
from operator import mul, truediv
from typing import Any, Protocol

import msgspec

from core.metrics import Metrics
from proxy.line_sink import LINE_BYTES, LineSink
from proxy.phases import PHASES, spent_in

FLUSH_S = 0.05
FLUSH_RECORDS = 64
"""Flush sooner when so many wait: a pipe holds 64 KiB."""
OFF = "off"
PHASE_SECONDS = "headrace_phase_seconds"
_SECONDS = (
    *(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0),
)
_OVERHEAD_SECONDS = (0.0001, *_SECONDS[2:14])
_CUTS = (256, 11)
"""Characters kept of each text when a line is too long: the second always fits."""


class AccessRecord(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """What became of one exchange; filled in as it goes on. What stays unset is not written.

    `time` is when the record was written unless the caller says otherwise. `phase` is where the
    exchange ended, `reason` the code of its error, or "ok". `*_ms` are milliseconds; those named
    after a phase are the time spent in it, `ttft_ms` runs from the first byte of the request.
    `tls_resumed`: of the handshake before it, if there was one.
    `asked_model`: the one that was asked for, where another one answered (a canary or a fallback).
    `key` is the id of an API key, `auth_fault` why a credential was refused. `tokens_estimated`:
    the replica reported no usage. `limit` is the rule that refused, `limit_unit` and `limit_per`
    what it counts and for whom, `retry_after_ms` how long the client was told to wait;
    `shadow_refusals` are the rules that would have refused. `over_budget` are the parts
    that took longer than the `tier` allows. `trace` (a `proxy.tracing.trace.Trace`, if it is
    traced) and the `*_at` are unset again when the exchange ends. `due` is who
    notes what took how long, once, and what for; it is unset then. `trail` are the phases with the
    instants at which they began, and the end: only written down while an exchange runs, worded and
    counted for many at a time, and then unset.
    """

    request_id: str
    time: datetime | None = None
    peer: str | None = None
    scheme: str | None = None
    method: str | None = None
    route: str | None = None
    status: int | None = None
    phase: str | None = None
    reason: str | None = None
    organisation: str | None = None
    tenant: str | None = None
    subject: str | None = None
    key: str | None = None
    auth_fault: str | None = None
    model: str | None = None
    asked_model: str | None = None
    replica: str | None = None
    prefill_replica: str | None = None
    tries: int | None = None
    stream: bool | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    predicted_cached_tokens: int | None = None
    completion_tokens: int | None = None
    tokens_estimated: bool | None = None
    reserved_tokens: int | None = None
    settled_tokens: int | None = None
    cost_units: float | None = None
    limit: str | None = None
    limit_unit: str | None = None
    limit_per: list[str] | None = None
    retry_after_ms: float | None = None
    limits_degraded: bool | None = None
    shadow_refusals: list[str] | None = None
    bytes_sent: int | None = None
    ttft_ms: float | None = None
    total_ms: float | None = None
    tls_resumed: bool | None = None
    tls_ms: float | None = None
    head_ms: float | None = None
    body_ms: float | None = None
    gate_ms: float | None = None
    auth_ms: float | None = None
    understand_ms: float | None = None
    tokenize_ms: float | None = None
    reserve_ms: float | None = None
    queue_ms: float | None = None
    route_ms: float | None = None
    connect_ms: float | None = None
    first_token_ms: float | None = None
    relay_ms: float | None = None
    tier: str | None = None
    over_budget: list[str] | None = None
    trace_id: str | None = None
    trace: Any = None
    trail: list[tuple[str, float]] = []
    due: Any = None
    first_event_at: float | None = None
    first_events_at: float | None = None

    def enter(self, phase: str, now: float) -> None:
        """`phase` begins at `now`, and the one before it ends."""
        self.phase = phase
        self.trail.append((phase, now))

    def leave(self, now: float) -> None:
        """The exchange ends."""
        self.trail.append(("", now))
        self.trace = self.first_event_at = self.first_events_at = None

    def word_phases(self) -> dict[str, float]:
        """Put what each phase took into the fields, and count it; returned in seconds."""
        spent = spent_in(self.trail)
        if self.due is not None:
            observer, times = self.due
            self.due = None
            observer.observe(self, spent, times)
        # As `milliseconds`, in loops in C: there are ten for each exchange.
        microseconds = map(int, map(mul, spent.values(), _MILLION))
        _do_all(
            map(setattr, repeat(self), map(_field, spent), map(truediv, microseconds, _THOUSAND))
        )
        return spent


_field = {phase: phase + "_ms" for phase in PHASES}.__getitem__
_MILLION, _THOUSAND = repeat(1e6), repeat(1e3)
_do_all = deque[None](maxlen=0).extend


def milliseconds(seconds: float) -> float:
    """Whole microseconds, as the log shows durations. Not `round`, which takes ten times as long
    to be right about the last digit."""
    return int(seconds * 1e6) / 1e3


def utc_now() -> datetime:
    return datetime.now(UTC)


class Sink(Protocol):
    """Where lines go. `waiting_bytes`: what it could not write so far."""

    @property
    def waiting_bytes(self) -> int: ...

    def put(self, line: bytes) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class _Nowhere:
    waiting_bytes = 0

    def __repr__(self) -> str:
        return OFF

    def put(self, line: bytes) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class RecordLog:
    """Gathers records for `flush_s` and writes them together, as `line_of` words them. `write`
    needs a running event loop."""

    def __init__(
        self,
        sink: Sink,
        line_of: Callable[[AccessRecord], bytes],
        flush_s: float,
        wall: Callable[[], datetime] = utc_now,
    ) -> None:
        self._sink: Sink | None = sink
        self._line_of = line_of
        self._flush_s = flush_s
        self._wall = wall
        self._waiting: list[AccessRecord] = []
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._sink or OFF}>"

    def write(self, record: AccessRecord) -> None:
        """Queue the line of a finished exchange. Never blocks, never raises for the target."""
        if self._sink is None:
            return
        if record.time is None:
            record.time = self._wall()
        waiting = self._waiting
        waiting.append(record)
        if len(waiting) >= FLUSH_RECORDS:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._flush_s, self._tick)

    def flush(self) -> None:
        """Write what the target takes now."""
        sink = self._sink
        if sink is None:
            return
        # Many lines made in a row cost far less each than one now and then.
        for record in self._waiting:
            sink.put(self._line_of(record))
        self._waiting.clear()
        sink.flush()

    def close(self) -> None:
        """Write what the target takes, drop the rest. May be called twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sink is not None:
            self.flush()
            self._sink.close()
            self._sink = None

    def _tick(self) -> None:
        self._timer = None
        self.flush()
        if self._sink is not None and self._sink.waiting_bytes:
            self._timer = asyncio.get_running_loop().call_later(self._flush_s, self._tick)


class AccessLog(RecordLog):
    """Writes records to `stdout`, `stderr`, a file, or nowhere (`off`), and counts their phases on
    the way: that, too, is cheaper for many in a row. Raises ConfigError if the target cannot be
    opened."""

    def __init__(
        self, target: str, metrics: Metrics, wall: Callable[[], datetime] = utc_now
    ) -> None:
        dropped = metrics.counter(
            "headrace_access_log_dropped_total",
            "Access log lines lost because their target was full or gone.",
        )
        phases = metrics.histogram(
            PHASE_SECONDS,
            "Where the time of exchanges with a model went, by phase",
            _SECONDS,
            ("phase",),
        )
        self._phases = {phase: phases.labels(phase) for phase in PHASES}
        self._overhead = metrics.histogram(
            "headrace_gateway_seconds",
            "From the first byte of the request to the request being sent upstream",
            _OVERHEAD_SECONDS,
        ).labels()
        if target == OFF:
            super().__init__(_Nowhere(), _no_line, FLUSH_S, wall)
        else:
            super().__init__(LineSink(target, dropped.inc), line_of, FLUSH_S, wall)

    def flush(self) -> None:
        rows: dict[tuple[str, ...], list[tuple[float, ...]]] = {}
        overheads: list[float] = []
        observers: list[Any] = []
        for record in self._waiting:
            if record.due is not None and record.due[0] not in observers:
                observers.append(record.due[0])
            spent = record.word_phases()
            record.trail = []
            if record.model is not None:
                phases = tuple(spent)
                if phases not in rows:
                    rows[phases] = []
                rows[phases].append(tuple(spent.values()))
                if record.ttft_ms is not None and "first_token" in spent:
                    overheads.append(record.ttft_ms / 1e3 - spent["first_token"])
        taken: dict[str, list[float]] = {}
        for phases, several in rows.items():
            for phase, column in zip(phases, zip(*several, strict=True), strict=True):
                taken.setdefault(phase, []).extend(column)
        for phase, values in taken.items():
            self._phases[phase].observe_all(values)
        if overheads:
            self._overhead.observe_all(overheads)
        for observer in observers:
            observer.tell()
        super().flush()


_encode = msgspec.json.Encoder().encode


def _no_line(record: AccessRecord) -> bytes:
    return b""


def line_of(record: msgspec.Struct) -> bytes:
    """One line of JSON, in ASCII, of LINE_BYTES at most."""
    try:
        line = _encode(record) + b"\n"
    except UnicodeEncodeError:  # a lone surrogate
        return _careful_line(record)
    if line.isascii() and len(line) <= LINE_BYTES:
        return line
    return _careful_line(record)


def _careful_line(record: msgspec.Struct) -> bytes:
    """The line in ASCII (a terminal obeys some characters above it) and short enough to write."""
    line = b""
    for cut in _CUTS:
        fields: dict[str, Any] = {
            name: value.encode("utf-8", "replace").decode()[:cut]
            if isinstance(value, str)
            else value
            for name, value in msgspec.to_builtins(record).items()
        }
        line = json.dumps(fields, separators=(",", ":")).encode() + b"\n"
        if len(line) <= LINE_BYTES:
            break
    return line
