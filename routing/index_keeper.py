"""The one writer of a prefix index that several workers read: hears what they announce. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from routing.announcements import Key, Kind, Record, heading, records
from routing.index import Masks, PrefixIndex, Target
from routing.index_target import ONE_TIER, Tiers

_COLD_AGAIN_S = 10.0


class Kept(Masks, Protocol):
    """Masks that outlive who wrote them."""

    @property
    def entries(self) -> int: ...

    @property
    def refused(self) -> int: ...

    def adopt(self) -> Iterable[tuple[int, int]]: ...


class Room(NamedTuple):
    """A replica's place, and for how many blocks it has room."""

    place: int
    capacity: int


class _Sent:
    """A prompt on its way, `count` times."""

    __slots__ = ("blocks", "count", "target")

    def __init__(self, target: Target, blocks: Sequence[int]) -> None:
        self.target = target
        self.blocks = blocks
        self.count = 0


class IndexKeeper:
    """`life_of(worker)` tells in which life each of the `workers` is, `life` is the keeper's own.
    `tiers`: where the bits of slower tiers are.

    What is on its way is exact whatever dies: of a dead worker nothing counts, and for a keeper in
    its next life every worker announces all anew (see `announcements`). What replicas hold is as
    the keeper before left it.
    """

    def __init__(
        self,
        masks: Kept,
        max_entries: int,
        life_of: Callable[[int], int],
        life: int,
        workers: int,
        *,
        tiers: Tiers = ONE_TIER,
    ) -> None:
        self._masks = masks
        self._tiers = tiers
        self.index = PrefixIndex(min(max_entries, masks.entries), masks)
        self._life_of = life_of
        self._life = life
        self._targets: dict[int, Target] = {}
        self._rooms: dict[str, Room] = {}
        self._cold_again_at: dict[int, float] = {}
        self._sent: list[dict[Key, _Sent]] = [{} for _ in range(workers)]
        self._lives = [life_of(worker) for worker in range(workers)]
        self.ignored = 0

    def __repr__(self) -> str:
        return f"<IndexKeeper {self.index}, {self.on_their_way} prompts on their way>"

    @property
    def on_their_way(self) -> int:
        return sum(sent.count for mine in self._sent for sent in mine.values())

    @property
    def refused(self) -> int:
        """Blocks that found no room."""
        return self._masks.refused

    def target(self, replica_id: str) -> Target | None:
        """Its part of the index."""
        room = self._rooms.get(replica_id)
        return None if room is None else self._targets.get(room.place)

    def use(self, rooms: Mapping[str, Room], max_entries: int) -> None:
        """These are the replicas from now on. One that was known by the same name in the same place
        keeps what it holds."""
        for name, room in self._rooms.items():
            if name not in rooms or rooms[name].place != room.place:
                self._leave(room.place)
        for name, room in rooms.items():
            target = self._targets.get(room.place)
            if target is None:
                bit, slower = 1 << room.place, self._tiers.bits(room.place)
                self._targets[room.place] = self.index.add_at(bit, room.capacity, slower)
            elif self._rooms[name].capacity != room.capacity:
                self.index.resize(target, room.capacity)
        self._rooms = dict(rooms)
        self.index.limit(min(max_entries, self._masks.entries))

    def adopt(self) -> None:
        """Go on from what is in the memory. To be called once, after `use`, before all else."""
        known = 0
        targets = [one for each in self._targets.values() for one in (each, *each.slower)]
        for target in targets:
            known |= target.bit
        strays = []
        for block, mask in self._masks.adopt():
            if mask & ~known:
                strays.append((block, mask & known))
            for target in targets:
                if mask & target.bit:
                    target.resident[block] = None
        for block, mask in strays:
            if mask:
                self._masks[block] = mask
            else:
                self._masks.pop(block, 0)

    def forget_held(self) -> None:
        """Nothing of what replicas hold is known any more: blocks are made in another way."""
        for target in self._targets.values():
            for one in (target, *target.slower):
                self.index.clear(one)

    def review(self) -> None:
        """Take off what dead workers had sent. To be called several times a second."""
        for worker, life in enumerate(self._lives):
            if self._life_of(worker) != life:
                self._lives[worker] = self._life_of(worker)
                self._forget(worker)

    def hear(self, worker: int, datagram: bytes, now: float) -> int | None:
        """Returns what to tell the worker that it was heard (`Heading.mark`), if it was. Raises
        ValueError for what no worker sends."""
        head = heading(datagram)
        if self._lives[worker] != self._life_of(worker):
            self.review()
        if head.life != self._lives[worker] or head.reader != self._life:
            self.ignored += 1
            return None
        if head.anew:
            self._forget(worker)
        for record in records(datagram):
            self._take(worker, record, now)
        return head.mark

    def _take(self, worker: int, record: Record, now: float) -> None:
        kind = record.kind
        if kind == Kind.EXPECT:
            self._expect(worker, record)
        elif kind in (Kind.CONFIRM, Kind.DROP):
            self._over(worker, record.key, confirmed=kind == Kind.CONFIRM)
        elif (target := self._targets.get(record.place)) is not None:
            self._take_of_place(kind, target, record, now)

    def _take_of_place(self, kind: int, target: Target, record: Record, now: float) -> None:
        if kind == Kind.RESIZE:
            if target.nominal != max(record.word, 1):
                self.index.resize(target, record.word)
        elif kind == Kind.CORRECTED:
            if not target.exact:
                self.index.corrected(target, predicted=record.number, delivered=record.word)
        elif kind == Kind.COLD and now >= self._cold_again_at.get(record.place, now):
            # Every worker says so, at slightly different times.
            self._cold_again_at[record.place] = now + _COLD_AGAIN_S
            if not target.exact:
                self.index.clear(target)

    def _expect(self, worker: int, record: Record) -> None:
        mine, key = self._sent[worker], record.key
        sent = mine.get(key)
        if sent is None:
            target = self._targets.get(record.place)
            if target is None:
                return
            sent = mine[key] = _Sent(target, record.blocks)
        sent.count += 1
        self.index.expect(sent.target, sent.blocks)

    def _over(self, worker: int, key: Key, *, confirmed: bool) -> None:
        mine = self._sent[worker]
        sent = mine.get(key)
        if sent is None:
            return  # of a replica that is gone
        sent.count -= 1
        if not sent.count:
            del mine[key]
        if confirmed:
            self.index.confirm(sent.target, sent.blocks)
        else:
            self.index.drop(sent.target, sent.blocks)

    def _forget(self, worker: int) -> None:
        mine = self._sent[worker]
        for key, sent in list(mine.items()):
            for _ in range(sent.count):
                self._over(worker, key, confirmed=False)

    def _leave(self, place: int) -> None:
        target = self._targets.pop(place)
        self._cold_again_at.pop(place, None)
        for mine in self._sent:
            for key in [key for key in mine if key[0] == place]:
                del mine[key]
        self.index.remove(target)
