"""Gaps, replays, restarts: what is applied is what the publisher has published, or less."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from backend.kv.events import Batch
from backend.kv.stream import LOST_S, NOTHING, STALE_S, EventStream, Step
from core.kv_events import Trust


def batch(ts: float) -> Batch:
    return Batch(ts, [])


def followed(first: int = 0, last: int = 2) -> EventStream:
    """One that was replayed batches `first` to `last`, of which batch n has the time n."""
    stream = EventStream(replayable=True)
    assert stream.connected().replay_from == 0
    for seq in range(first, last + 1):
        assert stream.replayed(seq, batch(seq)) == Step(batches=(batch(seq),))
    assert stream.replay_ended() == NOTHING
    assert stream.trust is Trust.EXACT
    return stream


def test_from_the_beginning() -> None:
    stream = EventStream(replayable=True)
    assert stream.trust is Trust.APPROX
    assert stream.connected() == Step(replay_from=0)
    assert stream.trust is Trust.RECOVERING
    assert stream.live(2, batch(2)) == NOTHING
    assert stream.replayed(0, batch(0)).batches == (batch(0),)
    assert stream.live(3, batch(3)) == NOTHING
    assert stream.replayed(1, batch(1)).batches == (batch(1),)
    assert stream.replayed(2, batch(2)).batches == (batch(2),)
    assert stream.replay_ended() == Step(batches=(batch(3),))
    assert stream.trust is Trust.EXACT
    assert stream.live(4, batch(4)) == Step(batches=(batch(4),))


def test_a_gap_is_asked_for_and_filled() -> None:
    stream = followed()
    assert stream.live(5, batch(5)) == Step(replay_from=2)
    assert (stream.trust, stream.gaps) == (Trust.RECOVERING, 1)
    assert stream.why == "batches 3 to 4 are missing"
    assert stream.replayed(2, batch(2)) == NOTHING
    assert stream.replayed(3, batch(3)) == Step(batches=(batch(3),))
    assert stream.replayed(4, batch(4)) == Step(batches=(batch(4),))
    assert stream.replayed(5, batch(5)) == Step(batches=(batch(5),))
    assert stream.replay_ended() == NOTHING
    assert stream.trust is Trust.EXACT
    assert stream.live(6, batch(6)).batches == (batch(6),)


def test_what_is_lost_for_good_clears() -> None:
    stream = followed()
    stream.live(9, batch(9))
    assert stream.replayed(7, batch(7)) == Step(True, (batch(7),))
    assert stream.replayed(8, batch(8)) == Step(False, (batch(8),))
    assert stream.replay_ended() == Step(False, (batch(9),))
    assert stream.trust is Trust.EXACT


def test_a_hole_after_the_replay_clears() -> None:
    stream = followed()
    stream.live(9, batch(9))
    stream.replayed(2, batch(2))
    stream.replayed(3, batch(3))
    assert stream.replay_ended() == Step(True, (batch(9),))


def test_nobody_answers_a_replay() -> None:
    stream = followed()
    stream.live(9, batch(9))
    assert stream.replay_ended(answered=False) == Step(True, (batch(9),))
    assert stream.trust is Trust.EXACT
    assert stream.live(10, batch(10)) == Step(batches=(batch(10),))


def test_without_replay_a_gap_clears() -> None:
    stream = EventStream(replayable=False)
    assert stream.connected() == NOTHING
    assert stream.trust is Trust.EXACT
    assert stream.live(4, batch(4)) == Step(batches=(batch(4),))
    assert stream.live(6, batch(6)) == Step(True, (batch(6),))
    stream.disconnected(1.0)
    assert stream.connected() == Step(clear=True)


def test_a_restart_is_a_number_that_goes_back() -> None:
    stream = followed()
    assert stream.live(0, batch(50)) == Step(True, (batch(50),))
    assert stream.live(1, batch(51)) == Step(False, (batch(51),))


def test_a_restart_of_which_the_beginning_was_missed() -> None:
    stream = followed(last=8)
    assert stream.live(2, batch(52)) == Step(clear=True, replay_from=0)
    for seq in range(3):
        assert stream.replayed(seq, batch(50 + seq)).batches == (batch(50 + seq),)
    assert stream.replay_ended() == NOTHING
    assert stream.trust is Trust.EXACT


def test_what_is_heard_twice_is_applied_once() -> None:
    stream = followed(last=5)
    assert stream.live(4, batch(4)) == NOTHING
    assert stream.live(5, batch(5)) == NOTHING
    assert stream.live(6, batch(6)).batches == (batch(6),)


def test_the_same_publisher_after_a_loss_of_connection() -> None:
    stream = followed()
    stream.disconnected(10.0)
    assert stream.trust is Trust.RECOVERING
    assert stream.connected() == Step(replay_from=2)
    assert stream.replayed(2, batch(2)) == NOTHING
    assert stream.replayed(3, batch(3)).batches == (batch(3),)
    assert stream.replay_ended() == NOTHING
    assert stream.trust is Trust.EXACT


def test_another_publisher_after_a_loss_of_connection() -> None:
    stream = followed()
    stream.disconnected(10.0)
    stream.connected()
    assert stream.replayed(2, batch(52)) == Step(clear=True)
    assert stream.replayed(3, batch(53)) == NOTHING
    assert stream.replay_ended() == Step(replay_from=0)
    for seq in range(4):
        assert stream.replayed(seq, batch(50 + seq)) == Step(False, (batch(50 + seq),))
    assert stream.replay_ended() == NOTHING


def test_another_publisher_that_has_published_less() -> None:
    stream = followed()
    stream.disconnected(10.0)
    stream.connected()
    assert stream.replay_ended() == Step(clear=True, replay_from=0)
    assert stream.replayed(0, batch(50)) == Step(False, (batch(50),))
    assert stream.replay_ended() == NOTHING
    assert stream.live(1, batch(51)).batches == (batch(51),)


def test_a_connection_that_stays_away() -> None:
    stream = followed()
    stream.disconnected(10.0)
    stream.tick(10.0 + LOST_S)
    assert stream.trust is Trust.RECOVERING
    stream.tick(10.1 + LOST_S)
    assert (stream.trust, stream.why) == (Trust.APPROX, "no connection")
    stream.connected()
    stream.tick(99.0)
    assert stream.trust is Trust.RECOVERING


def test_events_that_are_due_and_do_not_come() -> None:
    stream = followed()
    stream.due(10.0)
    stream.due(15.0)
    stream.tick(10.0 + STALE_S)
    assert stream.trust is Trust.EXACT
    stream.tick(10.1 + STALE_S)
    assert stream.trust is Trust.APPROX
    assert stream.live(3, batch(3)) == Step(replay_from=2)
    assert stream.replayed(2, batch(2)) == NOTHING
    assert stream.replayed(3, batch(3)).batches == (batch(3),)
    assert stream.replay_ended() == NOTHING
    stream.due(50.0)
    stream.live(4, batch(4))
    stream.tick(99.0)
    assert stream.trust is Trust.EXACT


def test_events_that_come_again_without_replay() -> None:
    stream = EventStream(replayable=False)
    stream.connected()
    stream.live(0, batch(0))
    stream.due(10.0)
    stream.tick(99.0)
    assert stream.trust is Trust.APPROX
    assert stream.live(1, batch(1)) == Step(batches=(batch(1),))
    assert stream.trust is Trust.EXACT


def test_a_batch_that_cannot_be_read_clears() -> None:
    stream = followed()
    assert stream.unreadable(3).clear
    assert stream.live(4, batch(4)) == Step(batches=(batch(4),))


class Publisher:
    """Publishes to a stream over a network that loses, and answers replays from a short memory."""

    def __init__(self, chance: random.Random, replayable: bool) -> None:
        self.chance = chance
        self.now = 0.0
        self.sent: list[tuple[int, Batch]] = []
        self.number = 0
        self.stream = EventStream(replayable)
        self.applied: list[float] = []
        self.do(self.stream.connected())

    def do(self, step: Step) -> None:
        while True:
            if step.clear:
                self.applied.clear()
            self.applied += [one.ts for one in step.batches]
            if step.replay_from is None:
                return
            if self.chance.random() < 0.1:
                step = self.stream.replay_ended(answered=False)
                continue
            for seq, one in self.sent[-20:]:
                if seq >= step.replay_from:
                    inner = self.stream.replayed(seq, one)
                    if inner.clear:
                        self.applied.clear()
                    self.applied += [found.ts for found in inner.batches]
            step = self.stream.replay_ended()

    def publish(self, arrives: bool) -> None:
        self.now += 1.0
        item = (self.number, batch(self.now))
        self.number += 1
        self.sent.append(item)
        if arrives:
            self.do(self.stream.live(*item))

    def restart(self) -> None:
        self.stream.disconnected(self.now)
        self.sent.clear()
        self.number = 0
        for _ in range(self.chance.randrange(12)):
            self.publish(arrives=False)
        self.do(self.stream.connected())


@given(st.integers(0, 10**6), st.booleans(), st.integers(1, 120))
def test_whatever_happens_what_is_applied_is_an_unbroken_end(
    seed: int, replayable: bool, length: int
) -> None:
    """Applied since the last clear: the last batches of the living publisher without a hole."""
    publisher = Publisher(random.Random(seed), replayable)
    for _ in range(length):
        fate = publisher.chance.random()
        if fate < 0.03:
            publisher.restart()
        else:
            publisher.publish(arrives=fate < 0.8)
    publisher.publish(arrives=True)
    assert publisher.stream.trust is Trust.EXACT
    applied = publisher.applied
    assert applied
    assert applied == [one.ts for _, one in publisher.sent][-len(applied) :]
