"""Which place in shared memory each replica has, the same in every process. Pure.

Decided by the places before and the configuration alone, wherever that is taken over. A replica
keeps its place while its id, URL and model are the same. A place that becomes free rests for a
while, since leases of the replica that had it may live on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from backend.config import ReplicaConfig
from core.errors import ConfigError

_LEAST = 64
_RESTING = 4

Server = tuple[str, str, str]


def room_for(replicas: int, slower: int = 0) -> int:
    """How many places a gateway gets that starts with so many replicas: twice as many at least.
    Fewer where each has `slower` further tiers, so that as many bits are enough for a few."""
    least = _LEAST // (1 + slower)
    return least * -(-2 * max(replicas, 1) // least)


@dataclass(frozen=True)
class Places:
    """`numbers` by id, URL and model; `resting`: numbers of those that left, the last ones last.
    There are `most` places."""

    most: int
    numbers: Mapping[Server, int]
    resting: tuple[int, ...] = ()

    @cached_property
    def by_id(self) -> Mapping[str, int]:
        return {replica_id: number for (replica_id, _, _), number in self.numbers.items()}

    def renewed(self, replicas: Sequence[ReplicaConfig]) -> Places:
        """The places of these replicas. Raises ConfigError when there are too many."""
        if len(replicas) > self.most:
            raise ConfigError(
                f"$.replicas: {len(replicas)} of them, and a gateway that was started with this "
                f"few has room for {self.most}; it needs a restart (or take some out)"
            )
        wanted = [_server(replica) for replica in replicas]
        numbers = {server: self.numbers[server] for server in wanted if server in self.numbers}
        kept = set(numbers.values())
        resting = [*self.resting, *(n for n in self.numbers.values() if n not in kept)]
        resting = resting[-(self.most // _RESTING) :]
        free = [n for n in range(self.most) if n not in kept and n not in resting]
        for server in wanted:
            if server not in numbers:
                numbers[server] = free.pop(0) if free else resting.pop(0)
        return Places(self.most, numbers, tuple(resting))


def _server(config: ReplicaConfig) -> Server:
    return config.replica.id, config.url, config.model
