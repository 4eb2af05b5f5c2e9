"""What the workers of one gateway and its core process know in common, and the lines between them.

Made before the first fork, if there are several workers or gateways, and never replaced. Performs:
sockets.
"""

from __future__ import annotations

import os
import socket

from core.shared_ledger import SharedLedger
from core.shared_lives import SharedLives
from core.shared_lock import SharedLock
from core.shared_map import SharedMap
from core.shared_memory import SharedRows, StateBoard
from core.shared_probes import SharedProbes
from core.shared_wide_map import WORD_BITS, WideMap
from proxy.serve.config import Config
from proxy.serve.places import room_for

_GROWTH = 4
_LEAST_ENTRIES = 1 << 17
_BUFFER_BYTES = 1024 * 1024


class HostMemory:
    """`number`: a random name of this gateway. `ledger`: what each worker gave each replica, and
    what other gateways did, written by the core in the place of one worker more. `masks`: who holds
    which prefix, written by the core. `probes`: what each worker heard of each replica. `lives` of
    the workers and, the last one, of the core. `slower`: how many further tiers each replica has
    there. `lock`: whoever chooses a replica has it. `heard`: the last datagram of each worker that
    the core has read, written by that. `core_state`: what it says of itself."""

    def __init__(self, workers: int, places: int, entries: int, slower: int = 0) -> None:
        self.workers = workers
        self.places = places
        self.number = int.from_bytes(os.urandom(8), "little")
        self.ledger = SharedLedger(workers + 1, places)
        self.slower = slower
        parts = -(-places * (1 + slower) // WORD_BITS)
        self.masks = SharedMap(entries) if parts == 1 else WideMap(entries, parts)
        self.probes = SharedProbes(workers, places)
        self.lives = SharedLives(workers + 1)
        self.lock = SharedLock()
        self.heard = SharedRows(1, 8 * workers).row(0).cast("Q")
        self.core_state = StateBoard(1).for_worker(0)
        self._lines = [_pair() for _ in range(workers)]

    def __repr__(self) -> str:
        return f"<HostMemory of {self.workers} workers, {self.places} places, {self.masks}>"

    @classmethod
    def make(cls, config: Config) -> HostMemory | None:
        """None for a worker that is alone, on its host and among gateways."""
        if config.workers == 1 and not config.routing.hosts.redis:
            return None
        slower = config.routing.tiers.slower
        places = room_for(config.likely_replicas, slower)
        return cls(config.workers, places, _entries(config), slower)

    @property
    def core_life(self) -> int:
        return self.lives.of(self.workers)

    def to_core(self, worker: int) -> socket.socket:
        """A worker's end of its line, to be closed by the caller."""
        return _opened(self._lines[worker][0])

    def from_worker(self, worker: int) -> socket.socket:
        """The core's end of it."""
        return _opened(self._lines[worker][1])

    def worker_died(self, worker: int) -> None:
        """For the supervisor, before the next one is forked."""
        self.lives.ended(worker)
        self.ledger.clear(worker)

    def core_died(self) -> None:
        self.lives.ended(self.workers)
        self.forget_others()
        self.core_state.clear()

    def forget_others(self) -> None:
        """Nothing is known of other gateways."""
        self.ledger.clear(self.workers)

    def close(self) -> None:
        """For tests: a gateway has it to its end."""
        for pair in self._lines:
            for descriptor in pair:
                os.close(descriptor)
        self._lines.clear()


def _entries(config: Config) -> int:
    """Room for what the replicas are believed to hold, several times over, as their caches may be
    larger and they may become more: entries are spread over all of the memory, so that room costs
    as much as what is in it."""
    routing = config.routing
    tokens = sum(r.replica.kv_tokens or routing.default_kv_tokens for r in config.replicas)
    wanted = max(_GROWTH * tokens // routing.block_tokens, _LEAST_ENTRIES)
    return min(wanted, routing.index_entries)


def _pair() -> tuple[int, int]:
    """Descriptors of two sockets that carry whole records, in order. Both ends outlive any
    process that uses them."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for sock in (one, other):
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    return one.detach(), other.detach()


def _opened(descriptor: int) -> socket.socket:
    sock = socket.socket(fileno=os.dup(descriptor))
    sock.setblocking(False)
    return sock
