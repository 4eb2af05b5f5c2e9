from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from auth.board import UNUSED_S, Board, Slot
from auth.keyset import MAX_DOCUMENT_BYTES
from auth.refresh import History

# Python 3.12 and later warn about a fork while a thread of an earlier test lives.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@pytest.fixture
def in_child() -> Callable[[Callable[[Any], None]], Any]:
    """Runs a function in a forked process, with one end of a pipe; gives the other end."""
    context = multiprocessing.get_context("fork")

    def run(work: Callable[[Any], None]) -> Any:
        here, there = context.Pipe()
        child = context.Process(target=work, args=(there,), daemon=True)
        child.start()
        return child, here

    return run


def test_a_document_is_published_once_per_change() -> None:
    slot = Board(2).slot("a", 0.0)
    assert (slot.generation, slot.read()) == (0, None)
    slot.publish(b"one")
    slot.publish(b"one")
    assert slot.read() == (1, b"one")
    slot.publish(b"")
    assert slot.read() == (2, b"")
    slot.publish(b"x" * MAX_DOCUMENT_BYTES)
    assert slot.read() == (3, b"x" * MAX_DOCUMENT_BYTES)


def test_slots_are_found_by_name() -> None:
    board = Board(2)
    board.slot("a", 0.0).publish(b"of a")
    assert board.slot("b", 0.0).read() is None
    assert board.slot("a", 0.0).read() == (1, b"of a")


def test_a_full_board_gives_slots_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    board = Board(1)
    board.slot("a", 0.0).publish(b"of a")
    lone = board.slot("b", 0.0)
    assert "no slot is free" in caplog.text
    lone.publish(b"of b")
    assert lone.claim()
    assert board.slot("a", 0.0).read() == (1, b"of a")


def test_a_slot_that_nobody_uses_any_more_is_given_away() -> None:
    board = Board(2)
    used, unused = board.slot("used", 10.0), board.slot("unused", 10.0)
    unused.publish(b"of unused")
    unused.history = History(attempt_at=3.5, success_at=2.5, failures=4, owed_until=9.25)
    assert board.slot("early", 10.0 + UNUSED_S - 1)._board is not board
    used.touch(11.0)
    later = 10.0 + UNUSED_S
    before = unused.read_generation()
    taken = board.slot("taken", later)
    assert taken._board is board
    assert (taken.read(), taken.history) == (None, History())
    assert unused.read_generation() != before
    assert (used.held, unused.held, taken.held) == (True, False, True)
    taken.publish(b"of taken")
    assert unused.read() is None
    assert not unused.claim()
    unused.touch(later + 1000)
    assert board.slot("taken", later).read() == (3, b"of taken")
    again = unused.again(later + UNUSED_S)  # the longest unused is now that of `used`
    assert again._board is board
    assert (again.read(), used.held) == (None, False)


def test_a_slot_in_which_somebody_fetches_is_not_given_away() -> None:
    board = Board(1)
    fetching = board.slot("a", 0.0)
    assert fetching.claim()
    assert board.slot("b", 1000.0)._board is not board
    fetching.release()
    assert board.slot("b", 1000.0)._board is board


def test_a_board_closes_its_file() -> None:
    before = len(os.listdir("/proc/self/fd"))
    boards = [Board(1) for _ in range(5)]
    assert len(os.listdir("/proc/self/fd")) == before + 5
    slot = boards[0].slot("a", 0.0)
    boards.clear()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert slot.claim()


def test_a_document_that_was_not_written_to_its_end_is_not_read() -> None:
    slot = Board(1).slot("a", 0.0)
    slot.publish(b"document")
    slot._body[3:5] = b"XX"
    assert slot.read() is None
    slot.publish(b"document")
    assert slot.read() == (2, b"document")


def test_the_history_is_kept() -> None:
    slot = Board(1).slot("a", 0.0)
    assert slot.history == History()
    slot.history = History(attempt_at=3.5, success_at=2.5, failures=4, owed_until=9.25)
    assert slot.history == History(attempt_at=3.5, success_at=2.5, failures=4, owed_until=9.25)


def test_one_claim_at_a_time_in_one_process() -> None:
    board = Board(2)
    first, again, other = board.slot("a", 0.0), board.slot("a", 0.0), board.slot("b", 0.0)
    assert first.claim()
    assert not again.claim()
    assert other.claim()
    first.release()
    assert again.claim()


def test_forked_processes_share_documents_and_claims(in_child: Any) -> None:
    board = Board(2)
    mine = board.slot("a", 0.0)

    def work(pipe: Any) -> None:
        slot: Slot = board.slot("a", 0.0)
        for _ in range(2):
            pipe.recv()
            pipe.send((slot.claim(), slot.read()))
        slot.publish(b"from the child")
        slot.release()
        pipe.send("done")

    child, pipe = in_child(work)
    assert mine.claim()
    mine.publish(b"from the parent")
    pipe.send("look")
    assert pipe.recv() == (False, (1, b"from the parent"))
    mine.release()
    pipe.send("look")
    assert pipe.recv() == (True, (1, b"from the parent"))
    assert pipe.recv() == "done"
    assert mine.read() == (2, b"from the child")
    assert mine.claim()
    child.join(5)


def test_the_claim_of_a_dead_process_is_free(in_child: Any) -> None:
    board = Board(1)
    mine = board.slot("a", 0.0)

    def work(pipe: Any) -> None:
        pipe.send(board.slot("a", 0.0).claim())
        time.sleep(60)

    child, pipe = in_child(work)
    assert pipe.recv() is True
    assert not mine.claim()
    os.kill(child.pid, signal.SIGKILL)
    child.join(5)
    assert mine.claim()
