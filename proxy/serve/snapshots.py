"""The snapshots of one worker: one in use, perhaps one staged, and those with exchanges left.

A snapshot that is no longer in use lives until the last exchange that began with it has ended; the
pipeline counts them. Only then is closed what no other snapshot has.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable
from typing import TypeVar

from core.tasks import spawn
from proxy.serve.prepared import Prepared
from proxy.serve.replicas import StagedReplicas
from proxy.serve.snapshot import Snapshot, Surroundings

READY_S = 5.0
"""So long a staged snapshot may take to become ready, unless the one in use is not ready either.
Then it is used all the same: the configuration is what the operator wants, and what is missing (an
issuer that does not answer, a replica that is still to come) may stay missing."""
_LOOK_S = 0.02

Thing = TypeVar("Thing")

_log = logging.getLogger("headrace.serve")


class _Staged:
    def __init__(self, snapshot: Snapshot, replicas: StagedReplicas) -> None:
        self.snapshot = snapshot
        self.replicas = replicas

    def __repr__(self) -> str:
        return f"<_Staged {self.snapshot}>"


class Snapshots:
    """`current` is what exchanges begin with."""

    def __init__(self, prepared: Prepared, around: Surroundings) -> None:
        self._around = around
        self._old: list[Snapshot] = []
        self._staged: _Staged | None = None
        self._endings: set[asyncio.Task[None]] = set()
        self._open = around.metrics.gauge(
            "headrace_snapshots_open",
            "Configurations in use: the newest, and those with exchanges that began with them",
        ).labels()
        # By worker, as a sum would say nothing.
        self._generation = around.metrics.gauge(
            "headrace_config_generation", "How many configurations were taken", ("worker",)
        ).labels(str(around.index))
        self.current = Snapshot(prepared, around)
        self._publish()

    def __repr__(self) -> str:
        return f"<Snapshots {self.current}, {len(self._old)} before, staged={self._staged}>"

    async def start(self) -> None:
        for part in self.current.parts:
            await part.start()
        await self._around.replicas.start()

    async def close(self) -> None:
        """Everything, whatever exchanges there are."""
        self.drop()
        await self._around.replicas.close()
        last, self._old = [*self._old, self.current], []
        for part in _distinct(part for snapshot in last for part in snapshot.parts):
            await part.close()
        if self._endings:
            await asyncio.wait(self._endings)
        for file in _distinct(file for snapshot in last for file in snapshot.files):
            file.close()

    def unready(self) -> list[str]:
        """Why requests cannot be served."""
        reason = self._around.replicas.ready()
        return self.current.unready() + ([] if reason is None else [reason])

    async def stage(self, prepared: Prepared) -> None:
        """Build what is left to build, start it, and wait READY_S at most until it is ready.
        Raises ConfigError, with nothing left behind."""
        self.drop()
        replicas = self._around.replicas.stage(prepared)
        try:
            snapshot = Snapshot(prepared, self._around, self.current)
        except BaseException:
            self._around.replicas.drop(replicas)
            raise
        staged = self._staged = _Staged(snapshot, replicas)
        try:
            async with asyncio.timeout(READY_S):
                for part in self._only_of(snapshot, snapshot.parts):
                    await part.start()
                await self._become_ready(staged)
        except TimeoutError:
            reasons = "; ".join(self._unready(staged)) or "it does not start"
            _log.warning("the new configuration is used though not ready: %s", reasons)
        except BaseException:
            self.drop()
            raise

    async def _become_ready(self, staged: _Staged) -> None:
        """Or until it does not matter. Neither key sets nor probes say when they are through."""
        for pause_s in itertools.repeat(_LOOK_S):
            if self._staged is not staged or self.unready() or not self._unready(staged):
                return
            await asyncio.sleep(pause_s)

    def commit(self) -> bool:
        """Use what was staged; False if there is nothing. A plain call."""
        if self._staged is None:
            return False
        staged, self._staged = self._staged, None
        before, self.current = self.current, staged.snapshot
        self._around.replicas.commit(staged.replicas)
        self._old.append(before)
        before.pipeline.on_quiet = lambda: self._quiet(before)
        # Exchanges that were begun in this very pass of the loop have yet to count themselves.
        asyncio.get_running_loop().call_soon(self._quiet, before)
        self._publish()
        return True

    def drop(self) -> None:
        if self._staged is None:
            return
        staged, self._staged = self._staged, None
        self._around.replicas.drop(staged.replicas)
        self._end(staged.snapshot)
        self._settle()

    def _unready(self, staged: _Staged) -> list[str]:
        reason = self._around.replicas.unready(staged.replicas)
        return staged.snapshot.unready() + ([] if reason is None else [reason])

    def _quiet(self, snapshot: Snapshot) -> None:
        """No exchange is going on with it, for now."""
        if snapshot in self._old and not snapshot.pipeline.in_flight:
            self._old.remove(snapshot)
            snapshot.pipeline.on_quiet = None
            self._publish()
            self._end(snapshot)
            self._settle()

    def _settle(self) -> None:
        if not self._old:
            self._around.replicas.settle()

    def _end(self, snapshot: Snapshot) -> None:
        """Close what no other snapshot has."""
        for file in self._only_of(snapshot, snapshot.files):
            file.close()
        for part in self._only_of(snapshot, snapshot.parts):
            ending = spawn(part.close(), "snapshot-part-close")
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    def _only_of(self, snapshot: Snapshot, things: Iterable[Thing]) -> list[Thing]:
        others = [*self._old, self.current]
        if self._staged is not None:
            others.append(self._staged.snapshot)
        kept = {
            id(thing)
            for other in others
            if other is not snapshot
            for thing in (*other.parts, *other.files)
        }
        return [thing for thing in _distinct(things) if id(thing) not in kept]

    def _publish(self) -> None:
        self._open.set(1 + len(self._old))
        self._generation.set(self.current.prepared.generation)


def _distinct(things: Iterable[Thing]) -> list[Thing]:
    return list({id(thing): thing for thing in things}.values())
