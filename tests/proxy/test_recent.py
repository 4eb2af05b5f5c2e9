"""What is kept of the latest exchanges."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from proxy.access_log import AccessRecord
from proxy.recent import APART_S, PLACE_BYTES, PLACES, RecentBoard

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def record(number: int, reason: str = "ok", **fields: str) -> AccessRecord:
    time = NOON + timedelta(seconds=number)
    return AccessRecord(request_id=str(number), reason=reason, time=time, **fields)  # type: ignore[arg-type]


def test_all_failures_are_kept_and_few_of_the_others() -> None:
    board = RecentBoard(2)
    row = board.for_worker(0)
    for number in range(10):
        row.take(record(number), number * APART_S / 4)
    for number in range(10, 14):
        row.take(record(number, "upstream_reset"), 2.0)
    board.for_worker(1).take(record(20), 0.0)
    ids = [found["request_id"] for found in board.read()]
    assert ids == ["20", "13", "12", "11", "10", "8", "4", "0"]
    assert len(board.read(3)) == 3


def test_refusals_do_not_crowd_out_failures() -> None:
    board = RecentBoard(1)
    row = board.for_worker(0)
    for number in range(200):
        refused = record(number, "rate_limit_exceeded")
        refused.status = 404 if number % 2 else 429
        row.take(refused, number / 1000)
    row.take(record(200, "upstream_reset"), 0.2)
    assert [found["request_id"] for found in board.read()] == ["200", "0"]


def test_phases_are_in_what_is_kept_and_still_to_be_counted() -> None:
    board = RecentBoard(1)
    kept = record(1, "x")
    kept.trail = [("auth", 1.0), ("", 1.25)]
    board.for_worker(0).take(kept, 0.0)
    (found,) = board.read()
    assert found["auth_ms"] == 250.0
    assert "trail" not in found
    assert kept.trail == [("auth", 1.0), ("", 1.25)]


def test_old_ones_make_room() -> None:
    board = RecentBoard(1)
    row = board.for_worker(0)
    for number in range(PLACES + 5):
        row.take(record(number, "x"), 0.0)
    ids = {int(found["request_id"]) for found in board.read()}
    assert ids == set(range(5, PLACES + 5))


def test_a_place_that_is_being_written_is_left_out() -> None:
    board = RecentBoard(1)
    row = board.for_worker(0)
    row.take(record(1, "x"), 0.0)
    row.take(record(2, "x"), 0.0)
    row._row[20:40] = bytes(20)
    assert [found["request_id"] for found in board.read()] == ["2"]


def test_what_does_not_fit_is_not_kept() -> None:
    board = RecentBoard(1)
    board.for_worker(0).take(record(1, "x", model="m" * PLACE_BYTES), 0.0)
    assert board.read() == []


def test_what_is_traced_is_kept_a_few_each_second() -> None:
    board = RecentBoard(1)
    row = board.for_worker(0)
    row.take(record(0), 1.0)
    row.take(record(1, trace_id="a"), 1.0)
    row.take(record(2, trace_id="b"), 1.0 + APART_S / 2)
    row.take(record(3, trace_id="c"), 1.0 + 2 * APART_S)
    assert [found["request_id"] for found in board.read()] == ["3", "1", "0"]
