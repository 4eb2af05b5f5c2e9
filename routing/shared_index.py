"""The prefix index as one of several workers has it. Pure.

What replicas hold is read from memory that one process writes (`index_keeper.py`), without asking
it. What this worker has sent and is not answered is here as well, so that it counts at once; the
others hear of it through the keeper, within a pass of its loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from routing.announcements import Announcer
from routing.index import PrefixIndex
from routing.index_target import Reading, Target


class SharedIndex(PrefixIndex):
    """`held` are the masks that the keeper writes, by the bits of `places`; `wake` is called when
    there is something to send. A replica without a place is matched by what is sent from here."""

    def __init__(
        self,
        held: Reading,
        announcer: Announcer,
        places: Mapping[str, int],
        wake: Callable[[], None],
        most_places: int,
    ) -> None:
        super().__init__(1 << 62)
        self._held = held
        self._announcer = announcer
        self._places = places
        self._wake = wake
        self._most_places = most_places
        self._by_place: dict[int, Target] = {}
        self._spare = 0
        self._held_by = self._held_or_sent

    def __repr__(self) -> str:
        return f"<SharedIndex {len(self._masks)} blocks on their way, {self._announcer}>"

    def __len__(self) -> int:
        """None of its own: the keeper counts them."""
        return 0

    def use(self, places: Mapping[str, int]) -> None:
        """Other replicas, or others in the same places."""
        self._places = places

    def limit(self, max_entries: int) -> None:
        """That is the keeper's to do."""

    def add(self, capacity: int, name: str = "") -> Target:
        place = self._places.get(name)
        if place is None:
            self._spare += 1
            return self.add_at(1 << self._most_places + self._spare, capacity)
        before = self._by_place.get(place)
        if before is not None:
            if before.name == name:  # it was away for long
                self._tell_cold(place)
            if before.alive:
                self.remove(before)
        target = self._by_place[place] = self.add_at(1 << place, capacity)
        target.name = name
        target.place = place
        return target

    def expect(self, target: Target, blocks: Sequence[int]) -> None:
        if not target.alive:
            return  # its place is another replica's
        super().expect(target, blocks)
        if blocks and target.place >= 0:
            self._announcer.expect(target.place, blocks)
            self._wake()

    def confirm(self, target: Target, blocks: Sequence[int]) -> None:
        super().drop(target, blocks)
        if blocks and target.place >= 0:
            self._announcer.confirm(target.place, blocks)
            self._wake()

    def drop(self, target: Target, blocks: Sequence[int]) -> None:
        super().drop(target, blocks)
        if blocks and target.place >= 0:
            self._announcer.drop(target.place, blocks)
            self._wake()

    def corrected(self, target: Target, *, predicted: int, delivered: int) -> None:
        if target.alive and target.place >= 0:
            self._announcer.corrected(target.place, predicted, delivered)
            self._wake()

    def resize(self, target: Target, capacity: int) -> None:
        target.nominal = target.capacity = max(capacity, 1)
        if target.alive and target.place >= 0:
            self._announcer.resize(target.place, target.nominal)
            self._wake()

    def _tell_cold(self, place: int) -> None:
        self._announcer.cold(place)
        self._wake()

    def _held_or_sent(self, block: int, default: int, /) -> int:
        return self._held.get(block, 0) | self._masks.get(block, default)
