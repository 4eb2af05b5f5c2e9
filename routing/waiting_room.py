"""Requests that wait for a replica with room. Performs: each waits on a future of its own.

Whoever gives something back calls `wake`; besides, a tick looks every few milliseconds while
somebody waits, for what other workers gave back, for replicas that came, and for deadlines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from core.clock import Clock
from core.errors import GatewayError, RateLimited, Unavailable
from routing.admission import AdmissionQueue, Refusal, Waiter
from routing.config import AdmissionConfig
from routing.lease import Lease
from routing.meters import WaitingMeters

TICK_S = 0.005
_SENTENCES = {
    "tenant_over_share": "The replicas are busy, and you have more than your share of the queue.",
    "saturated_wait": "Every replica is busy, and a turn would come too late.",
    "saturated_queue_full": "Every replica is busy, and too many requests wait.",
    "saturated": "Every replica was busy for as long as a request may wait.",
}

Send = Callable[[str, AdmissionQueue], None]
"""Take from a model's queue what has room now, and set each one's ticket to its lease."""


class WaitingRoom:
    """The queues of one worker, by model; only those in which somebody waits. `rate_of`: tokens
    that the replicas of a model prefill in a second. `loop_of` gives the event loop."""

    def __init__(
        self,
        config: AdmissionConfig,
        send: Send,
        rate_of: Callable[[str], float],
        clock: Clock,
        meters: WaitingMeters,
        *,
        loop_of: Callable[[], Any] = asyncio.get_running_loop,
    ) -> None:
        self.queues: dict[str, AdmissionQueue] = {}
        self._known: dict[str, AdmissionQueue] = {}
        self._config = config
        self._send = send
        self._rate_of = rate_of
        self._clock = clock
        self._meters = meters
        self._loop_of = loop_of
        self._woken = False
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<WaitingRoom {self.queues}>"

    def use(self, config: AdmissionConfig) -> None:
        """Judge by `config` from now on; who waits already keeps its deadline."""
        self._config = config
        for queue in self._known.values():
            queue.config = config

    async def wait(self, model: str, waiter: Waiter, ahead_s: float) -> Lease:
        """A lease, when it is `waiter`'s turn; `ahead_s` as `AdmissionQueue.enter`. Raises
        Unavailable or RateLimited, with the reason as `code`."""
        queue = self._known.get(model)
        if queue is None:
            queue = self._known[model] = AdmissionQueue(self._config)
        for gone, refusal in queue.enter(waiter, self._clock(), self._rate_of(model), ahead_s):
            if gone is waiter:
                raise self._error(refusal)
            self._shed(gone, refusal)
        self.queues[model] = queue
        loop = self._loop_of()
        ticket: asyncio.Future[Lease] = loop.create_future()
        waiter.ticket = ticket
        if self._timer is None:
            self._timer = loop.call_later(TICK_S, self._tick)
        self.wake()
        taken = False
        try:
            lease = await ticket
            taken = True
            self._meters.waited(self._clock() - waiter.since)
            return lease
        finally:
            queue.leave(waiter)
            if not queue:
                self.queues.pop(model, None)
            # The client left in the moment in which its turn came.
            if not taken and ticket.done() and not ticket.cancelled() and not ticket.exception():
                ticket.result().release()

    def wake(self) -> None:
        """Something was given back: see to it in the next pass of the loop, once for all of it."""
        if not self._woken:
            self._woken = True
            self._loop_of().call_soon(self._work)

    def publish(self) -> None:
        """Bring the gauges up to date."""
        now = self._clock()
        self._meters.publish(
            {model: (len(queue), queue.age(now)) for model, queue in self.queues.items()}
        )

    def _tick(self) -> None:
        # Before anything that may fail, or nobody would ever be shed.
        self._timer = self._loop_of().call_later(TICK_S, self._tick) if self.queues else None
        now = self._clock()
        for model, queue in self.queues.items():
            for waiter, refusal in queue.overdue(now, self._rate_of(model)):
                self._shed(waiter, refusal)
        self._work()

    def _work(self) -> None:
        self._woken = False
        for model, queue in list(self.queues.items()):
            if queue:
                self._send(model, queue)

    def _shed(self, waiter: Waiter, refusal: Refusal) -> None:
        error = self._error(refusal)
        if not waiter.ticket.done():
            waiter.ticket.set_exception(error)

    def _error(self, refusal: Refusal) -> GatewayError:
        self._meters.shed(refusal.reason)
        kind = RateLimited if refusal.over_share else Unavailable
        sentence = _SENTENCES[refusal.reason]
        return kind(sentence, code=refusal.reason, retry_after_s=refusal.retry_after_s)
