"""The core: one process beside the workers that does what is to be done once per host.

It keeps the prefix index, which the workers read: it hears what they send where, and follows the
replicas that tell what they hold. Where several gateways share their load it speaks for this one.
Nobody asks it anything. Performs: sockets, timers.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from core.shared_memory import WorkerState
from core.tasks import spawn
from proxy.serve.aside import aside
from proxy.serve.config import parse_config
from proxy.serve.finder import Finder
from proxy.serve.host_memory import HostMemory
from proxy.serve.host_sharing import HostSharing
from proxy.serve.kv_index import KvIndex
from proxy.serve.logs import set_level, set_up_logging
from proxy.serve.prepared import Prepared, prepare
from proxy.serve.supervise.messages import Message, Outcome
from proxy.serve.supervise.worker import Reloadable, Stop
from routing.exact_cache import Place
from routing.index_keeper import IndexKeeper, Room
from routing.index_target import Tiers

NAME = "headrace-core"
"""What `ps` and `top` call it."""
_TICK_S = 0.05
_SWEEP_BLOCKS = 20_000
_MOST_READ = 64
_LONGEST = 1 << 17

_log = logging.getLogger("headrace.core")


class Core:
    """Reloaded as workers are. `memory` is that of `prepared`."""

    def __init__(self, prepared: Prepared, memory: HostMemory) -> None:
        shared = prepared.shared
        self._prepared = prepared
        self._staged: Prepared | None = None
        self._memory = memory
        self.metrics = metrics = shared.metrics_board.for_worker(memory.workers)
        self.keeper = IndexKeeper(
            memory.masks,
            prepared.config.routing.index_entries,
            memory.lives.of,
            memory.core_life,
            memory.workers,
            tiers=Tiers(memory.places, memory.slower),
        )
        self._kv = KvIndex(self._place, _may_be_asked, metrics, time.monotonic)
        self._hosts = HostSharing(memory, metrics, time.monotonic)
        self._finder = Finder(metrics)
        self._states = shared.states
        self._entries = metrics.gauge("headrace_index_entries", "Blocks in the prefix index.")
        self._on_their_way = metrics.gauge(
            "headrace_index_pending_prompts", "Prompts whose first token has not come."
        )
        self._evictions = metrics.counter(
            "headrace_index_evictions_total", "Blocks forgotten for want of room."
        )
        self._refusals = metrics.counter(
            "headrace_index_refused_total", "Blocks that found no room in the shared index."
        )
        self._counted = (0, 0)
        self._use()
        self.keeper.adopt()

    def __repr__(self) -> str:
        return f"<Core {self.keeper}>"

    async def run(self, stop: Stop, ready: Callable[[], None]) -> None:
        """Until `stop` is set and the workers are gone."""
        loop = asyncio.get_running_loop()
        lines = [self._memory.from_worker(worker) for worker in range(self._memory.workers)]
        for worker, line in enumerate(lines):
            loop.add_reader(line.fileno(), functools.partial(self._hear, worker, line))
        self._kv.start()
        self._hosts.start()
        ticking = spawn(self._tick(), "core")
        self._memory.core_state.publish(WorkerState.READY, os.getpid(), time.monotonic())
        ready()
        try:
            await stop.wait()
            await stop.bear(self._workers_gone())
        finally:
            ticking.cancel()
            await self._finder.close()
            await self._hosts.close()
            await self._kv.close()
            for line in lines:
                loop.remove_reader(line.fileno())
                line.close()

    async def _workers_gone(self) -> None:
        while True:
            if all(status.state is WorkerState.ABSENT for status in self._states.read()):
                return
            await asyncio.sleep(_TICK_S)

    def _hear(self, worker: int, line: socket.socket) -> None:
        try:
            for _ in range(_MOST_READ):
                datagram = line.recv(_LONGEST)
                if not datagram:
                    return
                mark = self.keeper.hear(worker, datagram, time.monotonic())
                if mark is not None:
                    self._memory.heard[worker] = mark
        except BlockingIOError:
            pass
        except ValueError as error:
            _log.error("worker %d announces nonsense: %s", worker, error)

    async def _tick(self) -> None:
        keeper, state = self.keeper, self._memory.core_state
        while True:
            await asyncio.sleep(_TICK_S)
            keeper.review()
            keeper.index.sweep(_SWEEP_BLOCKS)
            state.beat(time.monotonic())
            self._entries.set(len(keeper.index))
            self._on_their_way.set(keeper.on_their_way)
            evictions, refused = self._counted
            self._evictions.inc(keeper.index.evictions - evictions)
            self._refusals.inc(keeper.refused - refused)
            self._counted = (keeper.index.evictions, keeper.refused)

    # --- a new configuration, see `Worker` in app.py

    async def stage(self, text: bytes, path: str) -> None:
        before = self._prepared
        self._staged = await aside(lambda: prepare(parse_config(text, path), previous=before))

    def commit(self) -> None:
        if self._staged is None:
            return
        before, self._prepared, self._staged = self._prepared, self._staged, None
        self._prepared.commit()
        set_level(self._prepared.config.log.level)
        self._use()
        if before.cold_for(self._prepared):
            self.keeper.forget_held()

    def drop(self) -> None:
        self._staged = None

    def told(self, outcome: Outcome) -> None:
        """That is for the admin page."""

    def connect(self, say: Callable[[Message], None]) -> None:
        """It asks DNS for replicas, for all workers, and tells the supervisor."""
        self._finder.connect(say)

    def _use(self) -> None:
        prepared = self._prepared
        config, routing = prepared.config, prepared.config.routing
        places = prepared.places.by_id
        rooms = {
            r.replica.id: Room(
                places[r.replica.id],
                (r.replica.kv_tokens or routing.default_kv_tokens) // routing.block_tokens,
            )
            for r in config.replicas
        }
        self.keeper.use(rooms, routing.index_entries)
        self._finder.use(config.discover, config.dns)
        self._hosts.use(config.limits_redis if routing.hosts.redis else None, places)
        self._kv.use(
            config.active if routing.policy == "prefix_affinity" else (),
            upstream=config.upstream,
            contexts=prepared.upstream_tls,
            start_of=prepared.prompter.start_of,
            hashing=prepared.marks.hashing,
            block_tokens=routing.block_tokens,
            tiers=[tier for tier, _ in routing.tiers.levels],
        )

    def _place(self, replica_id: str) -> Place | None:
        target = self.keeper.target(replica_id)
        return None if target is None else (self.keeper.index, target)


def _name_it() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(NAME)


def _may_be_asked(replica_id: str) -> bool:
    """Every one: it is the workers who know whether it has an engine's metrics."""
    return True


async def serve(prepared: Prepared, stop: Stop, ready: Callable[[Reloadable], None]) -> None:
    """The core, from its fork to its end."""
    memory = prepared.shared.host
    assert memory is not None, "there is a core where there are several workers"
    _name_it()
    core = Core(prepared, memory)
    lost = core.metrics.counter(
        "headrace_log_dropped_total", "Lines of the log on stderr that were lost as it was full"
    )
    handler = set_up_logging(prepared.config.log.level, lost.inc)
    try:
        await core.run(stop, lambda: ready(core))
    finally:
        handler.close()
