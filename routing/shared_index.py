"""The prefix index as one of several workers has it. Pure.

What replicas hold is read from memory that one process writes (`index_keeper.py`), without asking
it. The others hear of what this worker sends through the keeper, within a pass of its loop; here
it counts at once, until the keeper is known to have heard it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from routing.announcements import Announcer
from routing.index import PrefixIndex
from routing.index_target import Reading, Target, Tiers

_MOST_UNHEARD = 500_000


class SharedIndex(PrefixIndex):
    """`held` are the masks that the keeper writes, by the bits of `places`. `heard` tells the mark
    of the last datagram that it has read; `wake` is called when there is something to send. Of a
    replica without a place nothing is known."""

    def __init__(
        self,
        held: Reading,
        announcer: Announcer,
        places: Mapping[str, int],
        *,
        most_places: int,
        slower: int = 0,
        heard: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(1 << 62, slower=slower)
        self._tiers = Tiers(most_places, slower)
        self._held = held
        self._announcer = announcer
        self._places = places
        self._most_places = most_places
        self._heard = heard
        self._wake = wake
        self._by_place: dict[int, Target] = {}
        self._without_place = 0
        # What may not have been heard: prompts as they were sent, and what was sent before those,
        # by bit. When `_mark` is heard all of `_older` has been, with `_last_mark` everything.
        self._prompts: list[tuple[int, Sequence[int]]] = []
        self._newer: dict[int, set[int]] = {}
        self._older: dict[int, set[int]] = {}
        self._unheard: list[tuple[int, set[int]]] = []
        self._size = 0
        self._mark = self._last_mark = -1
        self._held_by = self._held_or_sent

    def __repr__(self) -> str:
        return f"<SharedIndex of {len(self._by_place)} places, {self._announcer}>"

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
            self._without_place += 1
            beyond = self._most_places * (1 + self.slower)
            return self.add_at(1 << beyond + self._without_place, capacity)
        before = self._by_place.get(place)
        if before is not None:
            if before.name == name:  # it was away for long
                self._announcer.cold(place)
                self._wake()
            else:
                self._announcer.left(place)
            if before.alive:
                self.remove(before)
        target = self.add_at(1 << place, capacity, self._tiers.bits(place))
        self._by_place[place] = target
        target.name = name
        target.place = place
        return target

    def expect(self, target: Target, blocks: Sequence[int]) -> None:
        if not target.alive or target.place < 0 or not blocks:
            return  # its place may be another replica's
        self._prompts.append((target.bit, blocks))
        self._size += len(blocks)
        if self._size > _MOST_UNHEARD:
            self._turn()
        self._announcer.expect(target.place, blocks)
        self._last_mark = self._announcer.mark
        self._wake()

    def match(self, blocks: Sequence[int], targets: int) -> list[tuple[int, int]]:
        if self._prompts or self._unheard:
            heard = self._heard()
            if heard >= self._last_mark:  # mostly, so that few prompts are ever looked into
                self._forget_sent()
            else:
                if heard >= self._mark:
                    self._turn()
                self._sort_prompts()
        return super().match(blocks, targets)

    def confirm(self, target: Target, blocks: Sequence[int]) -> None:
        if blocks and target.place >= 0:
            self._announcer.confirm(target.place, blocks)
            self._wake()

    def drop(self, target: Target, blocks: Sequence[int]) -> None:
        if blocks and target.place >= 0:
            self._announcer.drop(target.place, blocks)
            self._wake()

    def remove(self, target: Target) -> None:
        super().remove(target)
        self._sort_prompts()
        for sent in (self._newer, self._older):
            sent.pop(target.bit, None)
        self._unheard = [*self._older.items(), *self._newer.items()]

    def corrected(self, target: Target, *, predicted: int, delivered: int) -> None:
        if target.alive and target.place >= 0:
            self._announcer.corrected(target.place, predicted, delivered)
            self._wake()

    def resize(self, target: Target, capacity: int) -> None:
        target.nominal = target.capacity = max(capacity, 1)
        if target.alive and target.place >= 0:
            self._announcer.resize(target.place, target.nominal)
            self._wake()

    def _turn(self) -> None:
        """All of `_older` was heard, or is too much to remember."""
        self._sort_prompts()
        self._older, self._newer = self._newer, {}
        self._unheard = list(self._older.items())
        self._size = 0
        self._mark = self._last_mark

    def _sort_prompts(self) -> None:
        for bit, blocks in self._prompts:
            sent = self._newer.get(bit)
            if sent is None:
                sent = self._newer[bit] = set()
                self._unheard.append((bit, sent))
            sent.update(blocks)
        self._prompts.clear()

    def _forget_sent(self) -> None:
        self._prompts.clear()
        self._newer, self._older = {}, {}
        self._unheard = []
        self._size = 0

    def _held_or_sent(self, block: int, default: int, /) -> int:
        mask = self._held.get(block, default)
        for bit, sent in self._unheard:
            if block in sent:
                mask |= bit
        return mask
