"""The KV events of one replica: finds who publishes them, and follows each rank. Performs."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable, Mapping

import zmq

from backend.asker import Asker
from backend.config import KvEventsConfig, ReplicaConfig, UpstreamConfig
from backend.dialer import Dialer
from backend.kv.follower import Follower, Told
from backend.kv.sockets import Context
from backend.kv.sources import MAX_SOURCES_BYTES, SOURCES_PATH, Source, configured, told_by
from core.clock import Clock
from core.kv_events import Trust
from core.tasks import spawn

TICK_S = 1.0
_ASK_S = 2.0
"""How long the replica may take to tell where its events are."""
_KNOWN_S = 0.1
_SEEK_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses between such questions while the answer is none; the last one goes on."""
_LOST_TICKS, _MOST_TICKS = 3, 30

_log = logging.getLogger("headrace.backend")


class Subscriber:
    """`listen` makes who is told of a rank. `known`: whether the replica's metrics are those of an
    engine that may have an answer; others are not asked. `start` begins, `close` ends everything.

    Raises ConfigError when the replica's key cannot be read.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        upstream: UpstreamConfig,
        context: ssl.SSLContext | None,
        *,
        listen: Callable[[int], Told],
        known: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self.id = config.replica.id
        self._asker = Asker(Dialer(config, upstream, context))
        self._events = config.kv_events
        self._rank = config.data_parallel_rank
        self._host = config.address.host or "127.0.0.1"
        self._listen = listen
        self._known = known
        self._clock = clock
        self._followers: dict[int, Follower] = {}
        self._task: asyncio.Task[None] | None = None
        self._fault = ""

    def __repr__(self) -> str:
        return f"<Subscriber of {self.id}: {list(self._followers.values())}>"

    @property
    def trust(self) -> Trust:
        """That of the rank that is trusted least."""
        trusts = [follower.trust for follower in self._followers.values()]
        return next((t for t in Trust if t in trusts), Trust.APPROX)

    def start(self, zmq_context: Context) -> None:
        if self._task is None:
            self._task = spawn(self._run(zmq_context), f"kv events {self.id}")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        self._unfollow(list(self._followers))

    def due(self) -> None:
        """Something was prefilled there that no rank has told of."""
        for follower in self._followers.values():
            follower.due()

    async def _run(self, context: Context) -> None:
        misses, patience = 0, _LOST_TICKS
        told = not isinstance(self._events, KvEventsConfig)
        while True:
            if told and not self._known():
                await asyncio.sleep(_KNOWN_S)
                continue
            sources = await self._find()
            self._follow(context, sources)
            if self._followers:
                misses = 0
                heard = await self._watch(patience)
                patience = _LOST_TICKS if heard else min(2 * patience, _MOST_TICKS)
            else:
                misses += 1
                await asyncio.sleep(_SEEK_S[min(misses, len(_SEEK_S)) - 1])

    async def _find(self) -> Mapping[int, Source]:
        if isinstance(self._events, KvEventsConfig):
            return configured(self._events)
        body = await self._asker.fetch(SOURCES_PATH, _ASK_S, MAX_SOURCES_BYTES)
        sources = {} if body is None else told_by(body, self._host)
        if self._rank is None:
            return sources
        return {rank: source for rank, source in sources.items() if rank == self._rank}

    async def _watch(self, patience: int) -> bool:
        """Until a rank is lost for `patience` ticks, which may mean that the replica publishes
        elsewhere now. Whether all were heard in between."""
        lost, heard = 0, False
        while lost < patience or isinstance(self._events, KvEventsConfig):
            await asyncio.sleep(TICK_S)
            for follower in self._followers.values():
                follower.tick()
            lost = lost + 1 if self.trust is Trust.APPROX else 0
            heard = heard or not lost
        return heard

    def _follow(self, context: Context, sources: Mapping[int, Source]) -> None:
        """Those of `sources`, and nobody else."""
        self._unfollow([r for r, f in self._followers.items() if sources.get(r) != f.source])
        for rank, source in sources.items():
            if rank in self._followers:
                continue
            follower = Follower(context, source, self._listen(rank), self._clock)
            try:
                follower.start()
            except zmq.ZMQError as error:
                self._complain(f"no KV events at {source.endpoint}: {error}")
                continue
            self._followers[rank] = follower

    def _unfollow(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._followers.pop(rank).close()
            self._listen(rank).gone()

    def _complain(self, fault: str) -> None:
        if fault != self._fault:
            self._fault = fault
            _log.warning("replica %s: %s", self.id, fault)
