"""The keeper of a shared index and the workers that read it, in one process."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from core.shared_lives import SharedLives
from core.shared_map import SharedMap
from routing.announcements import Announcer
from routing.index_keeper import IndexKeeper, Room
from routing.index_target import Target, Tiers
from routing.shared_index import SharedIndex

WORKERS = 2
KEEPER = WORKERS
ROOMS = {"a": Room(0, 100), "b": Room(3, 100)}


def path(text: str) -> list[int]:
    return [xxh3_64_intdigest(text[: k + 1].encode()) for k in range(len(text))]


class Worker:
    """With one target for each replica, as its router would have."""

    def __init__(self, host: Host, number: int) -> None:
        self.announcer = Announcer(host.lives.of(number), host.lives.of(KEEPER))
        self.woken = 0
        self.heard = 0
        places = {name: room.place for name, room in host.rooms.items()}
        self.index = SharedIndex(
            host.masks,
            self.announcer,
            places,
            most_places=64,
            heard=lambda: self.heard,
            wake=self.wake,
        )
        self.targets = {name: self.index.add(100, name) for name in host.rooms}

    def wake(self) -> None:
        self.woken += 1

    def held(self, name: str, text: str) -> int:
        [(_, count)] = self.index.match(path(text), self.targets[name].bit)
        return count


class Host:
    def __init__(self, rooms: dict[str, Room] = ROOMS, entries: int = 1000) -> None:
        self.now = 100.0
        self.rooms = dict(rooms)
        self.masks = SharedMap(entries)
        self.lives = SharedLives(WORKERS + 1)
        self.workers = [Worker(self, number) for number in range(WORKERS)]
        self.start_keeper()

    def start_keeper(self) -> None:
        life = self.lives.of(KEEPER)
        self.keeper = IndexKeeper(self.masks, 1000, self.lives.of, life, WORKERS)
        self.keeper.use(self.rooms, 1000)
        self.keeper.adopt()

    def pump(self) -> None:
        """All that was said arrives."""
        for number, worker in enumerate(self.workers):
            while (datagram := worker.announcer.next()) is not None:
                worker.announcer.sent()
                mark = self.keeper.hear(number, datagram, self.now)
                worker.heard = mark if mark is not None else worker.heard

    def kill_keeper(self) -> None:
        self.lives.ended(KEEPER)
        self.start_keeper()
        for worker in self.workers:
            worker.announcer.begin(self.lives.of(KEEPER))

    def kill_worker(self, number: int) -> None:
        self.lives.ended(number)
        self.workers[number] = Worker(self, number)

    def target(self, name: str) -> Target:
        target = self.keeper.target(name)
        assert target is not None
        return target

    def use(self, rooms: dict[str, Room]) -> None:
        self.rooms = rooms
        self.keeper.use(rooms, 1000)
        for worker in self.workers:
            worker.index.use({name: room.place for name, room in rooms.items()})


def test_what_one_sends_counts_there_at_once_and_elsewhere_when_announced() -> None:
    host = Host()
    one, two = host.workers
    one.index.expect(one.targets["a"], path("abc"))
    assert one.held("a", "abcd") == 3
    assert (two.held("a", "abcd"), one.held("b", "abcd")) == (0, 0)
    assert one.woken == 1
    host.pump()
    assert (one.held("a", "abcd"), two.held("a", "abcd")) == (3, 3)
    one.index.confirm(one.targets["a"], path("abc"))
    assert one.held("a", "abc") == 3  # the keeper knows it since it was on its way
    host.pump()
    assert two.held("a", "abc") == 3
    assert (len(one.index), len(host.keeper.index)) == (0, 3)
    two.index.expect(two.targets["a"], path("abx"))
    two.index.drop(two.targets["a"], path("abx"))
    host.pump()
    assert one.held("a", "abx") == 2
    assert host.keeper.on_their_way == 0


def test_one_match_tells_what_is_held_from_what_is_sent() -> None:
    host = Host()
    one, two = host.workers
    two.index.expect(two.targets["b"], path("ab"))
    host.pump()
    one.index.expect(one.targets["a"], path("abcd"))
    bits = one.targets["a"].bit, one.targets["b"].bit
    assert sorted(one.index.match(path("abcdef"), bits[0] | bits[1])) == [(1, 4), (8, 2)]
    assert bits == (1, 8)


def test_of_a_dead_worker_nothing_is_on_its_way() -> None:
    host = Host()
    one, two = host.workers
    one.index.expect(one.targets["a"], path("abc"))
    two.index.expect(two.targets["a"], path("ab"))
    host.pump()
    one.index.expect(one.targets["a"], path("xyz"))
    late = one.announcer.next()
    assert late is not None
    host.kill_worker(0)
    host.keeper.review()
    assert two.held("a", "abc") == 2
    host.keeper.hear(0, late, host.now)
    assert host.keeper.ignored == 1
    assert (two.held("a", "xyz"), host.keeper.on_their_way) == (0, 1)
    again = host.workers[0]
    again.index.expect(again.targets["a"], path("abc"))
    host.pump()
    assert two.held("a", "abc") == 3


def test_after_the_keepers_death_all_is_as_it_was() -> None:
    host = Host()
    one, two = host.workers
    one.index.expect(one.targets["a"], path("held"))
    one.index.confirm(one.targets["a"], path("held"))
    one.index.expect(one.targets["a"], path("way"))
    host.pump()
    host.lives.ended(KEEPER)
    # Nobody hears this, and the masks are still read.
    two.index.expect(two.targets["b"], path("bb"))
    assert (two.held("a", "held"), two.held("a", "way"), two.held("b", "bb")) == (4, 3, 2)
    said_to_the_dead = two.announcer.next()
    host.start_keeper()
    host.keeper.hear(1, said_to_the_dead or b"", host.now)
    assert host.keeper.ignored == 1
    for worker in (one, two):
        worker.announcer.begin(host.lives.of(KEEPER))
    host.pump()
    assert host.keeper.on_their_way == 2
    assert (one.held("b", "bb"), two.held("a", "held")) == (2, 4)
    assert len(host.target("a").resident) == 7


def test_replicas_come_and_go() -> None:
    host = Host()
    one, two = host.workers
    for worker in host.workers:
        worker.index.expect(worker.targets["a"], path("abc"))
        worker.index.expect(worker.targets["b"], path("abc"))
    host.pump()
    host.use({"b": Room(3, 50), "c": Room(0, 100)})
    assert host.target("b").nominal == 50
    gone = one.targets.pop("a")
    for worker in host.workers:
        worker.targets["c"] = worker.index.add(100, "c")
    assert (one.held("c", "abc"), one.held("b", "abc")) == (0, 3)
    one.index.confirm(gone, path("abc"))  # of a lease that outlived its replica
    one.index.expect(gone, path("x"))
    one.index.drop(gone, path("x"))
    host.pump()
    assert two.held("c", "abc") == 0
    assert host.keeper.target("a") is None
    host.keeper.forget_held()
    one.index.confirm(one.targets["b"], path("abc"))
    host.pump()
    assert two.held("b", "abc") == 3


def test_one_that_was_away_for_long_is_cold_once() -> None:
    host = Host()
    one, two = host.workers
    one.index.expect(one.targets["a"], path("abc"))
    one.index.confirm(one.targets["a"], path("abc"))
    host.pump()
    one.index.remove(one.targets["a"])
    one.targets["a"] = one.index.add(100, "a")
    host.pump()
    assert two.held("a", "abc") == 0
    one.index.expect(one.targets["a"], path("abc"))
    two.index.remove(two.targets["a"])
    two.targets["a"] = two.index.add(100, "a")
    host.now += 5
    host.pump()
    one.index.confirm(one.targets["a"], path("abc"))
    host.pump()
    assert two.held("a", "abc") == 3


def test_capacities_are_the_keepers() -> None:
    host = Host()
    one, two = host.workers
    for worker in host.workers:
        worker.index.resize(worker.targets["a"], 200)
    one.index.corrected(one.targets["a"], predicted=5, delivered=2)
    host.pump()
    assert one.targets["a"].nominal == 200
    assert (host.target("a").nominal, host.target("a").capacity) == (200, 190)
    two.index.limit(10)
    assert len(two.index) == 0
    host.kill_keeper()
    assert host.target("a").nominal == 100
    host.pump()
    assert host.target("a").nominal == 200  # told anew
    host.keeper.index.use_exact(host.target("a"), True)
    one.index.corrected(one.targets["a"], predicted=5, delivered=2)
    host.pump()
    assert host.target("a").capacity == 200
    host.use({"b": ROOMS["b"], "c": Room(0, 100)})
    one.index.add(100, "c")
    two.index.add(100, "c")
    host.kill_keeper()
    host.pump()
    assert host.target("c").nominal == 100


def test_without_a_place_nothing_counts() -> None:
    host = Host()
    one = host.workers[0]
    target = one.index.add(100, "unknown")
    other = one.index.add(100, "unknown too")
    assert target.bit != other.bit
    one.index.expect(target, path("ab"))
    one.index.corrected(target, predicted=1, delivered=0)
    one.index.resize(target, 9)
    one.index.confirm(target, path("ab"))
    assert one.index.match(path("abc"), target.bit) == [(target.bit, 0)]
    host.pump()
    assert len(host.keeper.index) == 0


def test_what_no_worker_sends_is_refused() -> None:
    with pytest.raises(ValueError, match="datagram"):
        Host().keeper.hear(0, b"nonsense", 0.0)


@given(st.integers(0, 2**32))
def test_whatever_dies_what_is_on_its_way_is_exact(seed: int) -> None:
    rng = random.Random(seed)
    host = Host()
    running: list[tuple[int, str, str]] = []
    for _ in range(80):
        dice = rng.random()
        if dice < 0.04:
            host.kill_keeper()
        elif dice < 0.08:
            number = rng.randrange(WORKERS)
            host.kill_worker(number)
            running = [one for one in running if one[0] != number]
        elif dice < 0.2:
            host.pump()
        elif running and dice < 0.55:
            number, name, text = running.pop(rng.randrange(len(running)))
            worker = host.workers[number]
            end = rng.choice((worker.index.confirm, worker.index.drop))
            end(worker.targets[name], path(text))
        else:
            text = "".join(rng.choice("ab") for _ in range(rng.randint(1, 6)))
            running.append((rng.randrange(WORKERS), rng.choice("ab"), text))
            worker = host.workers[running[-1][0]]
            worker.index.expect(worker.targets[running[-1][1]], path(text))
    host.pump()
    host.keeper.review()
    assert host.keeper.on_their_way == len(running)
    for name in "ab":
        target = host.target(name)
        expected = [block for _, of, text in running if of == name for block in path(text)]
        assert {b: expected.count(b) for b in expected} == target.expected
        known = {b for b, mask in host.masks.adopt() if mask & target.bit}
        assert known == set(expected) | set(target.resident)
        for _, of, text in running:
            if of == name:
                assert all(worker.held(name, text) == len(text) for worker in host.workers)


def test_slower_tiers_are_read_by_workers_and_outlive_the_keeper() -> None:
    masks, lives = SharedMap(1000), SharedLives(WORKERS + 1)
    tiers = Tiers(32, 1)
    index = SharedIndex(
        masks,
        Announcer(0, 0),
        {name: room.place for name, room in ROOMS.items()},
        most_places=32,
        slower=1,
        heard=lambda: 0,
        wake=lambda: None,
    )
    seen = index.add(100, "b")

    def begun() -> IndexKeeper:
        keeper = IndexKeeper(masks, 1000, lives.of, lives.of(KEEPER), WORKERS, tiers=tiers)
        keeper.use(ROOMS, 1000)
        keeper.adopt()
        return keeper

    def found() -> list[int]:
        return [index.match(path("abc"), one.bit)[0][1] for one in (seen, *seen.slower)]

    keeper = begun()
    told = keeper.target("b")
    assert told is not None
    keeper.index.use_exact(told, True)
    keeper.index.hold(told, path("a")[0])
    for block in path("abc"):
        keeper.index.hold(told.slower[0], block)
    assert found() == [1, 3]
    nowhere = index.add(100, "nobody")  # without a place
    assert {nowhere.bit, nowhere.slower} != {seen.bit, seen.slower}
    lives.ended(KEEPER)
    keeper = begun()
    assert found() == [1, 3]
    keeper.forget_held()
    assert found() == [0, 0]
    assert len(masks) == 0
