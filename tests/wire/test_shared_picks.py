"""Four processes that choose replicas at the same moment."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import NoReturn

from core.metrics import Metrics
from core.prompt import Prompt
from core.replica import Load, Replica
from core.shared_ledger import SharedLedger
from core.shared_lock import SharedLock
from routing.config import RoutingConfig
from routing.host import Host
from routing.index import PrefixIndex
from routing.ledger import WorkerLedger
from routing.router import Router

WORKERS = 4
REPLICAS = 8
PICKS = 256
PATIENCE = 100_000  # attempts, seconds: here the machine may have no time for who holds the lock


class Fleet:
    replicas = tuple(Replica(f"r{number}", "m") for number in range(REPLICAS))

    def candidates(self, model: str) -> Sequence[Replica]:
        return self.replicas

    def load(self, replica_id: str) -> Load | None:
        return None


def test_they_spread_by_at_most_one() -> None:
    counts = counts_of_picks()
    assert sum(counts) == PICKS
    assert max(counts) - min(counts) <= 1, counts


def counts_of_picks() -> list[int]:
    """How many each replica got."""
    ledger, lock = SharedLedger(WORKERS, REPLICAS), SharedLock(PATIENCE)
    ready, tell = os.pipe()
    go, start = os.pipe()
    children = []
    for number in range(WORKERS):
        pid = os.fork()
        if pid == 0:
            work(ledger, lock, number, tell, go)
        children.append(pid)
    for _ in children:
        os.read(ready, 1)
    os.write(start, bytes(WORKERS))
    codes = [os.waitpid(pid, 0)[1] for pid in children]
    for descriptor in (ready, tell, go, start):
        os.close(descriptor)
    assert codes == [0] * WORKERS
    return [sum(ledger.place(place)[WORKERS : 2 * WORKERS]) for place in range(REPLICAS)]


def work(ledger: SharedLedger, lock: SharedLock, number: int, tell: int, go: int) -> NoReturn:
    code = 1
    try:
        places = {replica.id: place for place, replica in enumerate(Fleet.replicas)}
        host = Host(WorkerLedger(ledger, number, places), PrefixIndex(10), lock)
        metrics = Metrics.private()
        router = Router(RoutingConfig(), Fleet(), metrics, time.monotonic, host)
        prompt = Prompt("m", 100, 100, True, (), 64)
        os.write(tell, b"1")
        os.read(go, 1)
        leases = [
            router.pick(model="m", prompt=prompt, max_output_tokens=10)
            for _ in range(PICKS // WORKERS)
        ]
        assert metrics.value("headrace_route_unlocked_total") == 0
        code = 0 if leases else 1
    finally:
        os._exit(code)
