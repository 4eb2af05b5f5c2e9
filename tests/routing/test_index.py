from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from routing.index import PrefixIndex, Target


def chain(*labels: str) -> list[int]:
    """Block hashes of a path in a tree: equal prefix, equal hashes."""
    return [xxh3_64_intdigest("/".join(labels[: k + 1]).encode()) for k in range(len(labels))]


def path(text: str) -> list[int]:
    return chain(*text)


class Expectation:
    """A prompt on its way."""

    def __init__(self, index: PrefixIndex, target: Target, blocks: list[int]) -> None:
        self._index, self._target, self._blocks = index, target, blocks
        index.expect(target, blocks)

    def confirm(self) -> None:
        self._index.confirm(self._target, self._blocks)

    def drop(self) -> None:
        self._index.drop(self._target, self._blocks)


def held(index: PrefixIndex, target: Target, blocks: list[int]) -> int:
    [(mask, count)] = index.match(blocks, target.bit)
    assert mask == target.bit
    return count


def test_expected_blocks_count_at_once_and_go_with_a_drop() -> None:
    index = PrefixIndex(100)
    one, two = index.add(50), index.add(50)
    first = Expectation(index, one, path("abc"))
    second = Expectation(index, one, path("abd"))
    assert held(index, one, path("abcx")) == 3
    assert held(index, two, path("abc")) == 0
    first.drop()
    assert held(index, one, path("abc")) == 2
    assert held(index, one, path("abd")) == 3
    second.drop()
    assert held(index, one, path("abd")) == 0
    assert len(index) == 0


def test_confirmed_blocks_stay() -> None:
    index = PrefixIndex(100)
    target = index.add(50)
    Expectation(index, target, path("abc")).confirm()
    Expectation(index, target, path("abcd")).drop()
    assert held(index, target, path("abcd")) == 3
    assert len(index) == 3


def test_tails_go_first_and_use_counts() -> None:
    index = PrefixIndex(100)
    target = index.add(5)
    Expectation(index, target, path("abc")).confirm()
    Expectation(index, target, path("xy")).confirm()
    Expectation(index, target, path("abc")).confirm()  # used again: xy is the older now
    Expectation(index, target, path("abq")).confirm()
    assert held(index, target, path("xy")) == 1
    assert held(index, target, path("abc")) == 3
    assert held(index, target, path("abq")) == 3
    assert index.evictions == 1


def test_what_is_being_computed_is_not_evicted() -> None:
    index = PrefixIndex(100)
    target = index.add(3)
    Expectation(index, target, path("abc")).confirm()
    running = Expectation(index, target, path("abcd"))
    Expectation(index, target, path("xyz")).confirm()
    assert held(index, target, path("abcd")) == 4
    running.drop()
    assert held(index, target, path("abcd")) == 0
    assert held(index, target, path("xyz")) == 3


def test_one_match_tells_all_targets_apart() -> None:
    index = PrefixIndex(10_000)
    targets = [index.add(1000) for _ in range(8)]
    blocks = path("abcdefghijklmnopqrst")
    lengths = [0, 1, 5, 5, 19, 20, 20, 7]
    for target, length in zip(targets, lengths, strict=True):
        Expectation(index, target, blocks[:length]).confirm()
    everyone = sum(target.bit for target in targets)
    matches = index.match(blocks, everyone)
    assert sum(mask for mask, _ in matches) == everyone
    for target, length in zip(targets, lengths, strict=True):
        assert [count for mask, count in matches if mask & target.bit] == [length]
    assert index.match([], everyone) == [(everyone, 0)]
    assert index.match(path("zzz"), everyone) == [(everyone, 0)]


def test_a_removed_target_is_forgotten_wholly() -> None:
    index = PrefixIndex(10_000)
    gone, stays = index.add(2000), index.add(2000)
    blocks = chain(*map(str, range(1000)))
    Expectation(index, gone, blocks).confirm()
    running = Expectation(index, gone, path("abc"))
    Expectation(index, stays, blocks[:10]).confirm()
    index.remove(gone)
    back = index.add(2000)
    assert back.bit != gone.bit
    assert held(index, back, blocks) == 0
    assert held(index, stays, blocks) == 10
    running.confirm()
    assert held(index, back, path("abc")) == 0
    for _ in range(20):
        Expectation(index, stays, path("x")).drop()
    assert len(index) == 10
    # Its bit may be used again now, and means nothing.
    third = index.add(10)
    assert third.bit == gone.bit
    assert held(index, third, blocks) == 0


def test_memory_is_bounded_however_many_prompts_pass() -> None:
    index = PrefixIndex(2000)
    targets = [index.add(100_000) for _ in range(4)]
    for number in range(3000):
        target = targets[number % 4]
        Expectation(index, target, chain(str(number), "a", "b", "c")).confirm()
    assert all(len(target.resident) <= 500 + 500 // 16 for target in targets)
    assert len(index) <= 2000 + 2000 // 16
    assert not any(target.expected for target in targets)


def test_capacity_follows_what_the_engine_found() -> None:
    index = PrefixIndex(10_000)
    target = index.add(100)
    index.corrected(target, predicted=5, delivered=2)
    assert target.capacity == 95
    index.corrected(target, predicted=2, delivered=5)
    assert target.capacity == 99
    for _ in range(200):
        index.corrected(target, predicted=0, delivered=5)
    assert target.capacity == 400
    for _ in range(200):
        index.corrected(target, predicted=5, delivered=0)
    assert target.capacity == 1
    index.corrected(target, predicted=0, delivered=1)
    assert target.capacity == 2
    index.resize(target, 1000)
    assert (target.nominal, target.capacity) == (1000, 20)


class Naive:
    """The same promises, kept by lists."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.order: list[int] = []
        self.expected: list[list[int]] = []

    def keep(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            if block in self.order:
                self.order.remove(block)
            self.order.append(block)
        del self.order[: max(len(self.order) - self.capacity, 0)]

    def held(self, blocks: list[int]) -> int:
        known = set(self.order).union(*self.expected)
        count = 0
        while count < len(blocks) and blocks[count] in known:
            count += 1
        return count


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_agrees_with_a_naive_index(seed: int, capacity: int) -> None:
    rng = random.Random(seed)
    index = PrefixIndex(10_000)
    targets = [index.add(capacity) for _ in range(3)]
    naive = [Naive(capacity) for _ in targets]
    running: list[tuple[Expectation, Naive, list[int]]] = []
    for _ in range(60):
        if running and rng.random() < 0.5:
            expectation, model, blocks = running.pop(rng.randrange(len(running)))
            model.expected.remove(blocks)
            if rng.random() < 0.7:
                expectation.confirm()
                model.keep(blocks)
            else:
                expectation.drop()
        else:
            number = rng.randrange(3)
            blocks = path("".join(rng.choice("ab") for _ in range(rng.randint(0, 8))))
            running.append((Expectation(index, targets[number], blocks), naive[number], blocks))
            naive[number].expected.append(blocks)
        asked = path("".join(rng.choice("ab") for _ in range(8)))
        for target, model in zip(targets, naive, strict=True):
            assert held(index, target, asked) == model.held(asked)
    for expectation, model, blocks in running:
        expectation.drop()
        model.expected.remove(blocks)
    assert len(index) == len(set().union(*(model.order for model in naive)))


def test_another_limit_holds_as_blocks_come() -> None:
    index = PrefixIndex(1000)
    target = index.add(500)
    for first in (0, 200):
        blocks = list(range(first + 1, first + 201))
        index.expect(target, blocks)
        index.confirm(target, blocks)
    assert len(index) == 400
    index.limit(100)
    index.expect(target, [1])
    index.confirm(target, [1])
    assert len(index) <= 100 + 100 // 16
    assert index.has(target)


def test_a_cleared_index_is_swept_within_a_budget() -> None:
    index = PrefixIndex(1000)
    targets = [index.add(100) for _ in range(2)]
    for target in targets:
        index.expect(target, [1, 2, 3])
    index.confirm(targets[0], [1, 2, 3])
    index.clear_all()
    assert not index.has(targets[0])
    assert not index.sweep(2)
    assert index.sweep(100)
    assert len(index) == 0
    for target in targets:  # of leases that end later
        index.confirm(target, [1, 2, 3])
        index.drop(target, [1, 2, 3])
    assert len(index) == 0


def test_an_exact_target_holds_what_it_tells_and_what_is_on_its_way() -> None:
    index = PrefixIndex(100)
    target, other = index.add(50), index.add(50)
    Expectation(index, target, path("abc")).confirm()
    Expectation(index, other, path("ab")).confirm()
    index.use_exact(target, True)
    assert held(index, target, path("abc")) == 0
    assert held(index, other, path("abc")) == 2
    for block in path("abc"):
        index.hold(target, block)
        index.hold(target, block)
    assert held(index, target, path("abcd")) == 3
    running = Expectation(index, target, path("abcde"))
    index.unhold(target, path("abc")[2])
    index.unhold(target, path("abc")[2])
    assert held(index, target, path("abcde")) == 5
    running.drop()
    assert held(index, target, path("abcde")) == 2
    assert len(index) == 2


def test_a_confirmed_prompt_counts_until_the_events_had_time_to_tell() -> None:
    index = PrefixIndex(100)
    target = index.add(50)
    index.use_exact(target, True)
    Expectation(index, target, path("abc")).confirm()
    index.expire(target)
    Expectation(index, target, path("xy")).confirm()
    index.hold(target, path("a")[0])
    assert held(index, target, path("abc")) == 3
    index.expire(target)
    assert held(index, target, path("abc")) == 1
    assert held(index, target, path("xy")) == 2
    index.expire(target)
    assert held(index, target, path("xy")) == 0
    assert not target.expected


def test_a_cleared_target_keeps_what_is_on_its_way() -> None:
    index = PrefixIndex(100)
    target, other = index.add(50), index.add(50)
    index.use_exact(target, True)
    index.hold(target, path("a")[0])
    index.hold(target, path("x")[0])
    Expectation(index, other, path("ab")).confirm()
    running = Expectation(index, target, path("ab"))
    before = target.bit
    index.clear(target)
    assert target.bit != before
    assert held(index, target, path("ab")) == 2
    assert held(index, target, path("x")) == 0
    running.drop()
    assert held(index, target, path("ab")) == 0
    assert held(index, other, path("ab")) == 2
    assert index.sweep(100)
    assert len(index) == 2
    assert index.add(50).bit == before


def test_without_events_an_exact_target_is_judged_again() -> None:
    index = PrefixIndex(100)
    target = index.add(4)
    index.use_exact(target, True)
    for block in path("abc"):
        index.hold(target, block)
    Expectation(index, target, path("abx")).confirm()
    index.use_exact(target, False)
    assert held(index, target, path("abx")) == 3
    assert held(index, target, path("abc")) == 3
    assert not target.expected
    Expectation(index, target, path("qr")).confirm()
    assert held(index, target, path("abc")) == 2


def test_bits_of_the_callers_choice_mean_nothing_of_their_last_owner() -> None:
    index = PrefixIndex(100)
    first = index.add_at(1 << 5, 50)
    Expectation(index, first, path("abc")).confirm()
    index.clear(first)
    assert (first.bit, held(index, first, path("abc"))) == (1 << 5, 0)
    Expectation(index, first, path("abc")).confirm()
    Expectation(index, first, path("xyz"))
    index.remove(first)
    second = index.add_at(1 << 5, 50)
    assert held(index, second, path("abc")) == 0
    assert held(index, second, path("xyz")) == 0
    assert len(index) == 0
    assert index.sweep(10)


def test_a_target_leaves_with_its_slower_tiers() -> None:
    index = PrefixIndex(100, slower=2)
    target = index.add(10)
    cpu, disk = target.slower
    index.use_exact(target, True)
    for one, block in ((target, 1), (cpu, 1), (cpu, 2), (disk, 1), (disk, 2), (disk, 3)):
        index.hold(one, block)
    every = target.bit | cpu.bit | disk.bit
    assert sorted(count for _, count in index.match([1, 2, 3], every)) == [1, 2, 3]
    index.remove(target)
    index.hold(cpu, 9)
    assert index.sweep(100)
    assert len(index) == 0
    again = index.add(10)
    assert len({again.bit, *[one.bit for one in again.slower]}) == 3
    assert index.match([1, 2, 3], again.slower[1].bit) == [(again.slower[1].bit, 0)]


def test_slower_tiers_at_bits_of_the_callers_choice_begin_empty() -> None:
    index = PrefixIndex(100)
    first = index.add_at(1, 10, (16,))
    index.hold(first.slower[0], 7)
    index.remove(first)
    second = index.add_at(1, 10, (16,))
    assert index.match([7], 17) == [(17, 0)]
    index.hold(second.slower[0], 7)
    assert dict(index.match([7], 17)) == {16: 1, 1: 0}
