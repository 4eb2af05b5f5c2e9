"""What all gateways have given the replicas, through the limits' Redis: the core says what its
workers have, hears what others have, and writes that where its workers add it up. Performs: timers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from core.clock import Clock
from core.metrics import Metrics
from core.tasks import spawn
from proxy.serve.host_memory import HostMemory
from ratelimit.config import RedisConfig
from ratelimit.redis_channel import RedisChannel
from routing.hosts import SNAPSHOT_S, Listener, Row, Teller, replica_key

TICK_S = 0.02
_CHANNEL = "hosts"
_COMPLAIN_S = 60.0
_log = logging.getLogger("headrace.core")


class HostSharing:
    """Off until `use` is given a Redis. Without Redis, or without the others, everybody goes by
    what this gateway knows."""

    def __init__(self, memory: HostMemory, metrics: Metrics, clock: Clock) -> None:
        self._ledger = memory.ledger
        self._workers = memory.workers
        self._host = memory.number
        self._teller = Teller(memory.number, memory.core_life)
        self._listener = Listener(memory.number)
        self._clock = clock
        self._redis: RedisConfig | None = None
        self._keys: dict[int, int] = {}
        self._sharing: asyncio.Task[None] | None = None
        self._started = False
        self._all_at = self._complain_at = float("-inf")
        self._others = metrics.gauge(
            "headrace_peer_gateways", "Other gateways whose load of the replicas is known."
        )
        self._alone = metrics.gauge(
            "headrace_hosts_unavailable", "1 while other gateways cannot be heard, as is configured"
        )
        self._messages = metrics.counter(
            "headrace_peer_messages_total", "Messages of gateways about their load.", ("result",)
        )

    def __repr__(self) -> str:
        return f"<HostSharing {self._host:016x} {self._listener} {self._redis and 'on'}>"

    def use(self, redis: RedisConfig | None, places: Mapping[str, int]) -> None:
        """Share through `redis` (None: not at all) the work of the replicas in `places`."""
        self._keys = {replica_key(name): place for name, place in places.items()}
        self._listener.use(self._keys)
        self._ledger.clear(self._workers)  # a place may be another replica's now
        self._write_all()
        if redis != self._redis:
            self._redis = redis
            if self._started:
                self._begin()

    def start(self) -> None:
        self._started = True
        self._begin()

    async def close(self) -> None:
        if self._sharing is not None:
            self._sharing.cancel()
            await asyncio.wait([self._sharing])

    def _begin(self) -> None:
        before, self._sharing = self._sharing, None
        if before is not None:
            before.cancel()
        if self._redis is not None:
            self._sharing = spawn(self._share(self._redis, before), "hosts")

    async def _share(self, redis: RedisConfig, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        channel = RedisChannel(redis, _CHANNEL, self._hear, self._changed)
        channel.start()
        self._alone.set(1)
        try:
            while True:
                await asyncio.sleep(TICK_S)
                now = self._clock()
                self._review(now)
                if not channel.connected:
                    continue
                said = self._teller.next(self._own(), now)
                if said is not None and not await channel.publish(said):
                    self._teller.failed()
        finally:
            await channel.close(self._teller.farewell())
            self._teller.failed()
            self._listener.expire(float("inf"))
            self._review(self._clock())
            self._alone.set(0)

    def _changed(self, connected: bool) -> None:
        self._alone.set(not connected)
        self._teller.failed()

    def _hear(self, data: bytes) -> None:
        now = self._clock()
        try:
            result = "used" if self._listener.hear(data, now) else "ignored"
        except ValueError as error:
            result = "garbage"
            if now >= self._complain_at:
                self._complain_at = now + _COMPLAIN_S
                _log.warning("hosts: a message of no gateway of this version: %s", error)
        self._messages.labels(result).inc()
        self._write_changed()

    def _review(self, now: float) -> None:
        self._listener.expire(now)
        self._others.set(len(self._listener))
        if now >= self._all_at:  # workers clear it all if the core was away
            self._all_at = now + SNAPSHOT_S
            self._write_all()
        self._write_changed()

    def _own(self) -> dict[int, Row]:
        rows = {}
        count, columns = self._workers, self._workers + 1
        for key, place in self._keys.items():
            words = self._ledger.place(place).tolist()
            pending = sum(words[:count])
            in_flight = sum(words[columns : columns + count])
            live = sum(words[2 * columns : 2 * columns + count])
            rows[key] = (max(pending, 0), max(in_flight, 0), max(live, 0))
        return rows

    def _write_changed(self) -> None:
        for key in self._listener.take_changed():
            if (place := self._keys.get(key)) is not None:
                self._put(place, self._listener.total(key))

    def _write_all(self) -> None:
        for key, place in self._keys.items():
            self._put(place, self._listener.total(key))

    def _put(self, place: int, row: Row) -> None:
        words, columns = self._ledger.place(place), self._workers + 1
        for number, value in enumerate(row):
            words[self._workers + number * columns] = value
