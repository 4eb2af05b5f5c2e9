"""Usage records for billing: one JSON line per exchange that was charged anything.

They gather for a fifth of a second, so a worker that is killed loses no more than that. Towards
Redis they are sent again until acknowledged: a record may come twice (after a connection that broke
in between), so whoever counts goes by `request_id`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec

from core.errors import ConfigError
from core.metrics import Metrics
from proxy.access_log import AccessRecord, RecordLog, Sink, line_of, utc_now
from proxy.config import UsageConfig
from proxy.line_sink import LineSink
from ratelimit.config import RedisConfig
from ratelimit.redis_stream import RedisStream

FLUSH_S: Final = 0.2


class UsageRecord(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """Who used what. `prompt_tokens` include `cached_tokens`; `estimated`: the replica reported no
    usage, so `completion_tokens` are counted from events. `time` is when the exchange ended,
    `reason` "ok" or the code of the error that ended it."""

    time: datetime | None
    request_id: str
    organisation: str | None = None
    tenant: str | None = None
    user: str | None = None
    key: str | None = None
    model: str | None = None
    route: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    estimated: bool | None = None
    cost_units: float | None = None
    reason: str | None = None
    status: int | None = None
    replica: str | None = None
    duration_ms: float | None = None


def usage_line(record: AccessRecord) -> bytes:
    usage = UsageRecord(
        time=record.time,
        request_id=record.request_id,
        organisation=record.organisation,
        tenant=record.tenant,
        user=record.subject,
        key=record.key,
        model=record.model,
        route=record.route,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        completion_tokens=record.completion_tokens,
        estimated=record.tokens_estimated,
        cost_units=record.cost_units,
        reason=record.reason,
        status=record.status,
        replica=record.replica,
        duration_ms=record.total_ms,
    )
    return line_of(usage)


class UsageLog:
    """Writes to a file, or a stream in the limits' Redis."""

    def __init__(
        self,
        sink: Sink,
        stream: RedisStream | None = None,
        wall: Callable[[], datetime] = utc_now,
    ) -> None:
        """`stream`: the sink, where it needs to be connected."""
        self._stream = stream
        self._log = RecordLog(sink, usage_line, FLUSH_S, wall)

    def __repr__(self) -> str:
        return f"<UsageLog {self._log}>"

    def write(self, record: AccessRecord) -> None:
        """Of a finished exchange, whatever became of it. Returns at once."""
        if record.settled_tokens is not None:
            self._log.write(record)

    async def start(self) -> None:
        if self._stream is not None:
            await self._stream.start()

    async def close(self) -> None:
        """Write what waits; wait a moment for Redis to have it."""
        self._log.flush()
        if self._stream is not None:
            await self._stream.stop()
        self._log.close()


def make_usage_log(config: UsageConfig, redis: RedisConfig | None, metrics: Metrics) -> UsageLog:
    """`redis`: that of the limits. Raises ConfigError if the file cannot be opened."""
    dropped = metrics.counter(
        "headrace_usage_dropped_total", "Usage records lost: file full, or Redis away too long."
    ).inc
    if config.file is not None:
        return UsageLog(LineSink(config.file, dropped))
    if config.redis_stream is None or redis is None:
        raise ConfigError("$.usage.redis_stream: needs the store of the limits to be Redis")
    stream = RedisStream(redis, config.redis_stream, config.max_entries, dropped)
    return UsageLog(stream, stream)
