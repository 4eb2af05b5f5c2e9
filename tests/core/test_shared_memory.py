from __future__ import annotations

import os

import pytest

from core.shared_memory import (
    CACHE_LINE,
    SharedRows,
    StateBoard,
    WorkerState,
    WorkerStatus,
    unready_reasons,
)


def status(index: int, state: WorkerState, beat_at: float = 100.0) -> WorkerStatus:
    return WorkerStatus(index, state, 1000 + index, beat_at)


def test_rows_are_whole_cache_lines_zeroed_and_apart() -> None:
    rows = SharedRows(3, CACHE_LINE + 1)
    assert rows.size == 2 * CACHE_LINE
    rows.row(1)[:] = b"\xff" * rows.size
    assert bytes(rows.row(0)) == bytes(rows.row(2)) == bytes(rows.size)


@pytest.mark.parametrize("index", [-1, 3])
def test_a_row_that_is_not_there_is_refused(index: int) -> None:
    with pytest.raises(IndexError):
        SharedRows(3, 8).row(index)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_a_child_writes_the_parent_reads() -> None:
    board = StateBoard(2)
    if (pid := os.fork()) == 0:
        board.for_worker(1).publish(WorkerState.READY, os.getpid(), 12.5)
        os._exit(0)
    os.waitpid(pid, 0)
    assert board.read() == [
        WorkerStatus(0, WorkerState.ABSENT, 0, 0.0),
        WorkerStatus(1, WorkerState.READY, pid, 12.5),
    ]


def test_a_beat_moves_the_time_alone_and_clear_forgets() -> None:
    cell = StateBoard(1).for_worker(0)
    cell.publish(WorkerState.DRAINING, 7, 1.0)
    cell.beat(2.0)
    assert cell.read() == WorkerStatus(0, WorkerState.DRAINING, 7, 2.0)
    cell.clear()
    assert cell.read() == WorkerStatus(0, WorkerState.ABSENT, 0, 0.0)


READY, NOT_READY = WorkerState.READY, WorkerState.NOT_READY
STARTING, DRAINING, ABSENT = WorkerState.STARTING, WorkerState.DRAINING, WorkerState.ABSENT


@pytest.mark.parametrize("other", [READY, STARTING, DRAINING, ABSENT])
def test_one_ready_worker_is_enough_when_the_others_do_no_harm(other: WorkerState) -> None:
    assert unready_reasons([status(0, READY), status(1, other)], 101.0) == []


def test_a_worker_that_accepts_but_cannot_serve_is_a_reason() -> None:
    statuses = [status(0, READY), status(1, NOT_READY)]
    assert unready_reasons(statuses, 101.0) == ["worker 1 is not ready"]


def test_a_silent_worker_is_a_reason_only_after_the_limit() -> None:
    statuses = [status(0, READY), status(1, READY, 90.0)]
    assert unready_reasons(statuses, 100.0, stale_after_s=10.0) == []
    assert unready_reasons(statuses, 112.0, stale_after_s=15.0) == [
        "worker 1 has been silent for 22 s"
    ]


def test_nobody_ready_is_a_reason() -> None:
    assert unready_reasons([status(0, STARTING), status(1, ABSENT)], 101.0) == [
        "no worker is ready (0 starting, 1 absent)"
    ]
