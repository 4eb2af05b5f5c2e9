"""A worker's line to the core: what there is to announce goes out in each pass of the loop, without
waiting. Performs: a socket."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from core.metrics import Metrics
from core.shared_memory import WorkerState
from proxy.serve.host_memory import HostMemory
from proxy.serve.prepared import Prepared
from routing.announcements import Announcer
from routing.host import Host
from routing.ledger import WorkerLedger
from routing.shared_index import SharedIndex

_AGAIN_S = 0.005
SILENT_S = 3.0
"""A core that has not beaten for so long counts as missing."""


class CoreLink:
    """`host` is what the worker's router works with. Without the core it goes on: masks are read as
    they stand, and the core hears all anew when it is back."""

    def __init__(self, memory: HostMemory, prepared: Prepared, worker: int, metrics: Metrics):
        self._memory = memory
        places = prepared.places.by_id
        self._announcer = Announcer(memory.lives.of(worker), memory.core_life)
        self._ledger = WorkerLedger(memory.ledger, worker, places)
        self._index = SharedIndex(
            memory.masks,
            self._announcer,
            places,
            most_places=memory.places,
            slower=memory.slower,
            heard=partial(memory.heard.__getitem__, worker),
            wake=self._wake,
        )
        self.host = Host(self._ledger, self._index, memory.lock)
        self._socket = memory.to_core(worker)
        self._due = False
        self._closed = False
        self._lost = 0
        # By worker, as a sum would say nothing.
        self._degraded = metrics.gauge(
            "headrace_degraded", "1 while this worker does without the core.", ("worker",)
        ).labels(str(worker))
        self._losses = metrics.counter(
            "headrace_announcements_lost_total",
            "Times that too much waited for the core, and all was announced anew.",
        )

    def __repr__(self) -> str:
        return f"<CoreLink {self._announcer}>"

    def use(self, prepared: Prepared) -> None:
        """Another configuration is in force."""
        places = prepared.places.by_id
        self._ledger.use(places)
        self._index.use(places)

    def review(self) -> None:
        """To be called about once a second."""
        state = self._memory.core_state.read()
        silent = time.monotonic() - state.beat_at > SILENT_S
        self._degraded.set(state.state is not WorkerState.READY or silent)
        if silent:
            self._memory.forget_others()  # as nobody hears when they end
        self._losses.inc(self._announcer.lost - self._lost)
        self._lost = self._announcer.lost
        if self._announcer.reader != self._memory.core_life:
            self._wake()

    def close(self) -> None:
        self._closed = True
        self._socket.close()

    def _wake(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._due = False
        if self._closed:
            return
        announcer = self._announcer
        life = self._memory.core_life
        if announcer.reader != life:
            announcer.begin(life)
        while (datagram := announcer.next()) is not None:
            try:
                self._socket.send(datagram)
            except OSError:  # full, mostly as nobody reads
                self._due = True
                asyncio.get_running_loop().call_later(_AGAIN_S, self._send)
                return
            announcer.sent()
