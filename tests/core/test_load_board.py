from __future__ import annotations

from core.load_board import STALE_AFTER_S, LoadBoard


def test_one_writes_and_all_read() -> None:
    board = LoadBoard(3)
    cell = board.for_worker(1)
    cell.beat(7.0)
    cell.set_connections(4)
    cell.set_exchanges(3)
    cell.set_resident_bytes(5000)
    cell.set_accepting(True)
    cell.count_accepted()
    cell.count_accepted()
    [first, last] = board.others(0)
    assert (first.index, last.index) == (1, 2)
    load = first.read()
    assert (load.beat_at, load.connections, load.exchanges) == (7.0, 4, 3)
    assert (load.resident_bytes, load.accepting) == (5000, True)
    board.for_worker(0).set_connections(2)
    assert board.connections() == 6
    assert board.resident_bytes() == 5000
    assert first.accepted == 2
    cell.clear()
    assert board.connections() == 2
    assert not first.read().accepting


def test_the_larger_of_connections_and_exchanges_is_the_load() -> None:
    cell = LoadBoard(1).for_worker(0)
    cell.beat(10.0)
    cell.set_accepting(True)
    cell.set_connections(5)
    assert cell.live_load(10.0) == 5
    cell.set_exchanges(90)
    assert cell.live_load(10.0) == 90


def test_who_does_not_accept_or_has_stopped_has_no_load_to_compare_with() -> None:
    cell = LoadBoard(1).for_worker(0)
    cell.beat(10.0)
    assert cell.live_load(10.0) is None
    cell.set_accepting(True)
    assert cell.live_load(10.0 + STALE_AFTER_S) == 0
    assert cell.live_load(10.1 + STALE_AFTER_S) is None
