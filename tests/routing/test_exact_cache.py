"""What a replica tells of its cache, as the prefix index then has it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from core.kv_events import CPU, DISK, GPU, Cleared, Removed, Stored
from routing.blocks import chain
from routing.exact_cache import EXPIRE_S, ExactCache, Place
from routing.index import PrefixIndex

SIZE = 4


def start(adapter: str | None, salt: str) -> int:
    return hash((adapter, salt)) & 0xFFFF


def keys(tokens: Sequence[int]) -> list[int]:
    return chain(array("I", tokens).tobytes(), SIZE, start(None, ""))


def stored(tokens: Sequence[int], first: int = 0, tier: int = 0) -> Stored:
    names = [repr(tokens[:end]).encode() for end in range(SIZE, len(tokens) + 1, SIZE)]
    parent = names[first - 1] if first else None
    return Stored(names[first:], parent, tokens[first * SIZE :], SIZE, tier)


class World:
    """An index with a replica in it, which may get another place."""

    def __init__(self, *slowest: int) -> None:
        levels = slowest or (CPU,)
        self.index = PrefixIndex(1000, slower=len(levels) - 1)
        self.target = self.index.add(100)
        self.place: Place | None = (self.index, self.target)
        self.cache = ExactCache(SIZE, start, lambda: self.place, levels)
        self.now = 10.0

    def matched(self, tokens: Sequence[int]) -> int:
        return dict(self.index.match(keys(tokens), self.target.bit))[self.target.bit]

    def by_level(self, tokens: Sequence[int]) -> list[int]:
        every = (self.target, *self.target.slower)
        return [self.index.match(keys(tokens), one.bit)[0][1] for one in every]

    def review(self) -> bool:
        self.now += EXPIRE_S
        return self.cache.review(self.now)


TOKENS = list(range(16))
OTHER = list(range(100, 116))


def test_what_is_told_counts_once_it_is_trusted() -> None:
    world = World()
    world.cache.apply(0, [stored(TOKENS)])
    assert world.matched(TOKENS) == 0
    world.cache.use(True)
    assert (world.target.exact, world.matched(TOKENS)) == (True, 4)
    world.cache.apply(0, [stored(OTHER), Removed(stored(TOKENS).hashes[2:])])
    assert (world.matched(TOKENS), world.matched(OTHER)) == (2, 4)
    world.cache.clear(0)
    assert (world.matched(TOKENS), world.matched(OTHER)) == (0, 0)


def test_while_it_is_not_trusted_it_goes_on_from_what_was_told() -> None:
    world = World()
    world.cache.use(True)
    world.cache.apply(0, [stored(TOKENS)])
    world.cache.use(False)
    assert (world.target.exact, world.matched(TOKENS)) == (False, 4)
    world.cache.apply(0, [Cleared(), stored(OTHER)])
    assert (world.matched(TOKENS), world.matched(OTHER)) == (4, 0)
    world.cache.use(True)
    assert (world.matched(TOKENS), world.matched(OTHER)) == (0, 4)


def test_another_place_in_the_index_is_told_everything() -> None:
    world = World()
    world.place = None
    world.cache.use(True)
    world.cache.apply(0, [stored(TOKENS)])
    assert not world.review()
    world.place = (world.index, world.target)
    world.review()
    assert world.matched(TOKENS) == 4
    world.index.remove(world.target)
    world.target = world.index.add(100)
    world.place = (world.index, world.target)
    world.review()
    assert (world.target.exact, world.matched(TOKENS)) == (True, 4)


def test_what_any_rank_holds_is_held() -> None:
    world = World()
    world.cache.use(True)
    world.cache.apply(0, [stored(TOKENS)])
    world.cache.apply(1, [stored(TOKENS[:8])])
    world.cache.apply(0, [Removed(stored(TOKENS).hashes[1:])])
    assert world.matched(TOKENS) == 2
    world.cache.clear(1)
    assert world.matched(TOKENS) == 1
    world.cache.clear(0)
    assert world.matched(TOKENS) == 0


def test_memory_is_as_good_and_disk_is_not() -> None:
    world = World()
    world.cache.use(True)
    world.cache.apply(0, [stored(TOKENS), stored(TOKENS, 2, CPU), stored(TOKENS, 3, DISK)])
    names = stored(TOKENS).hashes
    world.cache.apply(0, [Removed(names[2:])])
    assert world.matched(TOKENS) == 4
    world.cache.apply(0, [Removed(names[3:], CPU)])
    assert world.matched(TOKENS) == 3
    world.cache.apply(0, [stored(TOKENS, 3)])
    assert world.matched(TOKENS) == 4


def test_a_prompt_counts_until_its_events_should_have_come() -> None:
    world = World()
    world.cache.use(True)
    world.cache.apply(0, [stored(OTHER)])
    blocks = keys(TOKENS)
    world.index.expect(world.target, blocks)
    assert world.matched(TOKENS) == 4
    world.index.confirm(world.target, blocks)
    assert not world.review()
    assert world.matched(TOKENS) == 4
    assert world.review(), "nothing was told of it"
    assert world.matched(TOKENS) == 0


def test_a_prompt_that_fills_no_block_of_the_engine_is_not_missed() -> None:
    world = World()
    world.cache.use(True)
    world.cache.apply(0, [Stored([1], None, OTHER, 16)])
    for length, missed in ((12, False), (16, True)):
        blocks = keys(TOKENS[:length])
        world.index.expect(world.target, blocks)
        world.index.confirm(world.target, blocks)
        world.review()
        assert world.review() is missed


def test_a_prompt_that_was_told_of_is_not_missed() -> None:
    world = World()
    world.cache.use(True)
    blocks = keys(TOKENS)
    world.index.expect(world.target, blocks)
    world.cache.apply(0, [stored(TOKENS)])
    world.index.confirm(world.target, blocks)
    assert not world.review()
    assert not world.review()
    assert world.matched(TOKENS) == 4


def test_prompts_are_not_expired_too_soon() -> None:
    world = World()
    world.cache.use(True)
    world.index.expect(world.target, keys(TOKENS))
    world.index.confirm(world.target, keys(TOKENS))
    world.review()
    for _ in range(3):
        world.cache.review(world.now)
    assert world.matched(TOKENS) == 4


def test_late_events_are_waited_for_but_not_for_ever() -> None:
    world = World()
    world.cache.use(True)
    for lag_s, waited_s in ((0.2, 0.4), (1000.0, 1.0)):
        for _ in range(100):
            world.cache.late(lag_s)
        world.now += 10.0
        world.cache.review(world.now)
        world.index.expect(world.target, keys(TOKENS))
        world.index.confirm(world.target, keys(TOKENS))
        world.cache.review(world.now + waited_s * 0.9)
        world.cache.review(world.now + waited_s * 1.01)
        assert world.matched(TOKENS) == 4
        world.cache.review(world.now + waited_s * 1.9)
        assert world.matched(TOKENS) == 4
        world.cache.review(world.now + waited_s * 2.1)
        assert world.matched(TOKENS) == 0


def test_tiers_of_different_worth_are_told_apart() -> None:
    world = World(GPU, CPU, DISK)
    world.cache.use(True)
    world.cache.apply(0, [stored(TOKENS), stored(TOKENS, 0, DISK), stored(OTHER, 0, DISK)])
    assert world.by_level(TOKENS) == [4, 4, 4]
    assert world.by_level(OTHER) == [0, 0, 4]
    names = stored(TOKENS).hashes
    world.cache.apply(0, [Removed(names[2:])])  # from the GPU
    assert world.by_level(TOKENS) == [2, 2, 4]
    world.cache.apply(0, [stored(TOKENS, 2, CPU)])
    assert world.by_level(TOKENS) == [2, 4, 4]
    world.cache.apply(1, [stored(OTHER)])  # another rank
    assert world.by_level(OTHER) == [4, 4, 4]
    world.cache.clear(1)
    assert world.by_level(OTHER) == [0, 0, 4]
    world.cache.clear(0)
    assert world.by_level(TOKENS) == world.by_level(OTHER) == [0, 0, 0]


def test_slower_tiers_count_only_while_their_replica_is_trusted() -> None:
    world = World(GPU, DISK)
    world.cache.apply(0, [stored(TOKENS, 0, DISK)])
    assert world.by_level(TOKENS) == [0, 0]
    world.cache.use(True)
    assert world.by_level(TOKENS) == [0, 4]
    world.cache.use(False)
    assert world.by_level(TOKENS) == [0, 0]
    world.cache.use(True)
    world.index.remove(world.target)
    world.target = world.index.add(100)
    world.place = (world.index, world.target)
    world.review()
    assert world.by_level(TOKENS) == [0, 4]


def test_what_is_worth_nothing_is_not_claimed() -> None:
    world = World(GPU)
    world.cache.use(True)
    world.cache.apply(0, [stored(TOKENS, 0, CPU), stored(OTHER)])
    assert (world.by_level(TOKENS), world.by_level(OTHER)) == ([0], [4])
