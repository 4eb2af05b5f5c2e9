"""One worker, put together and run: what stays for its whole life, and the configurations.

What a configuration makes is in three rooms: `prepared.py` is what the worker shares with others,
`snapshot.py` the parts of its own, `replicas.py` what it knows of the replicas.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

from core.errors import GatewayError
from core.shared_memory import WorkerState
from core.tasks import spawn
from proxy.flow import Watchdog
from proxy.listen.connection import ClientExchange
from proxy.listen.listener import Listener
from proxy.listen.sockets import Sockets, connection_limit
from proxy.overload.admission import Admission
from proxy.overload.shedding import Shedding
from proxy.serve.admin import LiveSources, start_admin
from proxy.serve.aside import aside
from proxy.serve.config import parse_config
from proxy.serve.explaining import Explainer
from proxy.serve.finder import Finder
from proxy.serve.logs import set_level, set_up_logging
from proxy.serve.prepared import Prepared, Shared, prepare
from proxy.serve.replicas import Replicas
from proxy.serve.snapshot import Surroundings
from proxy.serve.snapshots import Snapshots
from proxy.serve.supervise.messages import Drain, Message, Outcome
from proxy.serve.supervise.worker import Reloadable, Stop
from proxy.tls.context import ignore_bad_names
from proxy.token_gaps import GapMeters
from proxy.turns import Turns

__all__ = ["Prepared", "Shared", "Worker", "prepare", "serve"]

_BEAT_S = 1.0
_SETTLE_LOOK_S = 0.05


class Worker:
    """What one worker consists of, joined: what stays, and what each configuration makes of it."""

    def __init__(self, prepared: Prepared, index: int) -> None:
        config, shared = prepared.config, prepared.shared
        metrics = shared.metrics_board.for_worker(index)
        self._shared = shared
        self._outcome = Outcome()
        self.metrics = metrics
        if prepared.tls is not None:
            prepared.tls.use_metrics(metrics)
        self._tls = prepared.tls
        self._state = shared.states.for_worker(index)
        self._watchdog = Watchdog()
        self.admission = admission = Admission(config.listen.limits, metrics)
        self._replicas = Replicas(prepared, metrics, time.monotonic, index)
        self._gaps = GapMeters(metrics)
        self._watchdog.every_tick(self._gaps.tell)
        around = Surroundings(
            index=index,
            metrics=metrics,
            clock=time.monotonic,
            watchdog=self._watchdog,
            admission=admission,
            replicas=self._replicas,
            turns=Turns(),
            gaps=self._gaps,
        )
        self._snapshots = Snapshots(prepared, around)
        self._finder = Finder(metrics) if shared.host is None else None
        self._look_for_replicas()
        self._listener = Listener(
            handler=self._handle,
            on_refused=self._refused,
            watchdog=self._watchdog,
            settings=config.listen,
            admission=admission,
            board=shared.loads,
            index=index,
            most_connections=connection_limit(),
            metrics=metrics,
            tls=prepared.tls,
        )
        self._shedding = Shedding(
            config.listen.overload,
            listener=self._listener,
            admission=admission,
            board=shared.loads,
            index=index,
            watchdog=self._watchdog,
            metrics=metrics,
        )

    def __repr__(self) -> str:
        return f"<Worker {self._state!r} {self._listener!r}>"

    async def run(
        self, sockets: Sockets, stop: Stop, ready: Callable[[], None], settle_s: float = 0.0
    ) -> None:
        """Serve until `stop` is set and the exchanges are over. For up to `settle_s` seconds
        connections are not accepted before they can be served."""
        async with AsyncExitStack() as stack:
            self._watchdog.start()
            stack.callback(self._watchdog.close)
            stack.callback(self._gaps.tell)
            stack.push_async_callback(self._snapshots.close)
            await self._snapshots.start()
            if self._finder is not None:
                stack.push_async_callback(self._finder.close)
            await self._settle(settle_s)
            admin = None
            if sockets.admin is not None:
                admin = await start_admin(
                    sockets.admin.socket,
                    metrics=self._shared.metrics_board,
                    reasons=self._report,
                    states=self._shared.states,
                    outcome=lambda: self._outcome,
                    live=LiveSources(
                        self._shared.recent, lambda: self._snapshots.current.config.budgets
                    ),
                    explain=Explainer(
                        lambda: self._snapshots.current.prepared, self._replicas.router
                    ).answer,
                )
                stack.push_async_callback(admin.close)
            context = self._tls.context if self._tls is not None else None
            for bound in sockets.listen:
                await self._listener.serve(bound.socket, context)
            beat = spawn(self._beat(), "state")
            stack.callback(beat.cancel)
            ready()
            drain = await stop.wait()
            beat.cancel()
            self._state.publish(WorkerState.DRAINING, os.getpid(), time.monotonic())
            if drain.handed_over and admin is not None:
                await admin.close()  # the successor answers for itself
            await self._end(drain, stop)

    async def _settle(self, most_s: float) -> None:
        for _ in range(int(most_s / _SETTLE_LOOK_S)):
            if not self._report():
                break
            await asyncio.sleep(_SETTLE_LOOK_S)

    async def _end(self, drain: Drain, stop: Stop) -> None:
        """Let the news spread, then accept no more and let exchanges end."""
        config = self._snapshots.current.config
        self._listener.announce_end()
        if drain.handed_over:
            self._listener.stop_accepting()
        if drain.delay:
            await stop.pause(config.propagation_s)
        if not await stop.bear(self._listener.drain(config.drain_s)):
            await self._listener.drain(0.0)

    # --- a new configuration, in three steps, so that all workers take it or none

    async def stage(self, text: bytes, path: str) -> None:
        """Make a new configuration ready to be used: `text`, as it was read from `path`.

        Parses and validates it, builds everything that can fail, starts what needs time (key sets,
        probes) and waits for that a while (`snapshots.READY_S`). No effect on requests. Raises
        ConfigError, in the words of `headrace check`, and is then as before. What was staged
        earlier is dropped.
        """
        before = self._snapshots.current.prepared
        prepared = await aside(lambda: prepare(parse_config(text, path), previous=before))
        await self._snapshots.stage(prepared)

    def commit(self) -> None:
        """Use what was staged: for every exchange that begins from now on, at once. Those in
        flight end with what they began with. Raises nothing. Without anything staged, nothing
        happens."""
        if not self._snapshots.commit():
            return
        prepared = self._snapshots.current.prepared
        prepared.commit()
        self._listener.configure(prepared.config.listen)
        self._shedding.settings = prepared.config.listen.overload
        set_level(prepared.config.log.level)
        self._look_for_replicas()

    def drop(self) -> None:
        """Forget what was staged, if anything: another worker could not."""
        self._snapshots.drop()

    def _handle(self, exchange: ClientExchange) -> Coroutine[Any, Any, None]:
        return self._snapshots.current.pipeline.handle(exchange)

    def _refused(self, exchange: ClientExchange, error: GatewayError) -> None:
        self._snapshots.current.observer.refused(exchange, error)

    def connect(self, say: Callable[[Message], None]) -> None:
        """Where there is no core, this worker asks DNS for replicas, and tells the supervisor."""
        if self._finder is not None:
            self._finder.connect(say)

    def _look_for_replicas(self) -> None:
        if self._finder is not None:
            config = self._snapshots.current.config
            self._finder.use(config.discover, config.dns)

    def told(self, outcome: Outcome) -> None:
        """How the last reload went, for the admin page."""
        self._outcome = outcome

    def _report(self) -> list[str]:
        """Why this worker cannot serve. Publishes its state, so that any worker can answer for
        all."""
        reasons = self._snapshots.unready()
        if reasons:
            reasons += self._outcome.troubles
        if not self._listener.draining:
            state = WorkerState.NOT_READY if reasons else WorkerState.READY
            self._state.publish(state, os.getpid(), time.monotonic())
        return reasons

    async def _beat(self) -> None:
        while True:
            self._report()
            self._replicas.publish()
            await asyncio.sleep(_BEAT_S)


async def serve(
    prepared: Prepared,
    sockets: Sockets,
    index: int,
    stop: Stop,
    ready: Callable[[Reloadable], None],
    *,
    settle_s: float = 0.0,
) -> None:
    """One worker, from its fork to its end."""
    worker = Worker(prepared, index)
    lost = worker.metrics.counter(
        "headrace_log_dropped_total", "Lines of the log on stderr that were lost as it was full"
    )
    sys.unraisablehook = ignore_bad_names
    handler = set_up_logging(prepared.config.log.level, lost.inc)
    try:
        await worker.run(sockets, stop, lambda: ready(worker), settle_s)
    finally:
        handler.close()
