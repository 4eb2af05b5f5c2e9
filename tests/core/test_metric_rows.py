from __future__ import annotations

import msgspec
import pytest

from core import metric_rows
from core.metric_rows import ROW_BYTES, VALUE_SLOTS, FamilyEntry, MetricRow, merge

COUNTER = FamilyEntry("counter", "headrace_a_total", "A.", ("k",), ())
HISTOGRAM = FamilyEntry("histogram", "headrace_h", "H.", (), (1.0, 2.0))


@pytest.fixture
def memory() -> memoryview:
    return memoryview(bytearray(ROW_BYTES))


def test_a_row_describes_itself_to_another_reader(memory: memoryview) -> None:
    row = MetricRow(memory)
    first, second = row.add_family(COUNTER), row.add_family(HISTOGRAM)
    assert first is not None
    assert second is not None
    slots = [
        row.add_series(first, 1, ("x",)),
        row.add_series(second, HISTOGRAM.width, ()),
        row.add_series(first, 1, ("y\n",)),
    ]
    assert slots == [0, 1, 5]
    row.cells[5] = 7.0
    row.cells[2] = 3.0
    assert MetricRow(memory).read() == [
        (COUNTER, ("x",), [0.0]),
        (HISTOGRAM, (), [0.0, 3.0, 0.0, 0.0]),
        (COUNTER, ("y\n",), [7.0]),
    ]


def test_what_is_not_published_yet_is_not_read(memory: memoryview) -> None:
    row = MetricRow(memory)
    row.add_family(COUNTER)
    row.add_series(0, 1, ("x",))
    before = row.read()
    length = memory[:8].cast("Q")[0]
    directory = memory[metric_rows.HEADER_BYTES + VALUE_SLOTS * 8 :]
    directory[length : length + 9] = b'["s",0,1,'  # its owner died here
    assert row.read() == before


def test_a_torn_directory_is_a_decode_error(memory: memoryview) -> None:
    row = MetricRow(memory)
    row.add_family(COUNTER)
    memory[:8].cast("Q")[0] -= 3
    with pytest.raises(msgspec.DecodeError):
        row.read()


def test_clear_leaves_a_row_like_a_new_one(memory: memoryview) -> None:
    row = MetricRow(memory)
    row.add_family(HISTOGRAM)
    row.add_series(0, HISTOGRAM.width, ())
    row.cells[0:4] = memoryview(b"\xff" * 32).cast("d")
    row.clear()
    assert row.read() == []
    assert row.add_family(COUNTER) == 0
    assert row.add_series(0, 1, ("x",)) == 0
    assert row.read() == [(COUNTER, ("x",), [0.0])]
    assert row.cells[1] == row.cells[3] == 0.0


def test_the_last_slot_can_be_used_and_no_more(memory: memoryview) -> None:
    row = MetricRow(memory)
    row.add_family(COUNTER)
    assert row.add_series(0, VALUE_SLOTS, ()) == 0
    assert row.add_series(0, 1, ()) is None


def test_rows_are_summed_by_family_and_labels() -> None:
    families = merge(
        [
            [(COUNTER, ("x",), [1.0]), (HISTOGRAM, (), [1.5, 1.0, 0.0, 2.0])],
            [(COUNTER, ("x",), [2.0]), (COUNTER, ("y",), [5.0])],
            [(HISTOGRAM, (), [1.0, 1.0, 1.0, 1.0])],
        ]
    )
    assert families["headrace_a_total"].series == {("x",): [3.0], ("y",): [5.0]}
    assert families["headrace_h"].series == {(): [2.5, 2.0, 1.0, 3.0]}


def test_rows_that_disagree_are_not_added_up() -> None:
    one = FamilyEntry("gauge", "headrace_g", "", (), ())
    other = FamilyEntry("counter", "headrace_g", "", (), ())
    families = merge([[(one, (), [1.0])], [(other, (), [5.0])], [(one, (), [2.0])]])
    assert families["headrace_g"].series == {(): [3.0]}


def test_a_removed_series_is_gone_and_its_slots_are_used_again(memory: memoryview) -> None:
    row = MetricRow(memory)
    row.add_family(COUNTER)
    row.add_family(HISTOGRAM)
    row.add_series(0, 1, ("x",))
    row.add_series(1, HISTOGRAM.width, ())
    row.add_series(0, 1, ("y",))
    row.cells[0] = row.cells[5] = 7.0
    row.remove_series(0, 1, ("x",), 0)
    assert MetricRow(memory).read() == [
        (HISTOGRAM, (), [0.0] * HISTOGRAM.width),
        (COUNTER, ("y",), [7.0]),
    ]
    assert row.add_series(1, HISTOGRAM.width, ()) == 6  # too wide for the gap
    assert row.add_series(0, 1, ("z",)) == 0
    assert (COUNTER, ("z",), [0.0]) in MetricRow(memory).read()


def test_any_number_of_series_come_and_go_in_the_same_place(memory: memoryview) -> None:
    row = MetricRow(memory)
    row.add_family(HISTOGRAM)
    for number in range(3 * VALUE_SLOTS // HISTOGRAM.width):
        slot = row.add_series(0, HISTOGRAM.width, (str(number),))
        assert slot == 0
        row.remove_series(0, HISTOGRAM.width, (str(number),), slot)
    assert row.used_slots == HISTOGRAM.width
    assert row.read() == []


def test_a_row_whose_owner_died_in_a_removal_can_be_read_and_cleared(memory: memoryview) -> None:
    row = MetricRow(memory)
    row.add_family(COUNTER)
    row.add_series(0, 1, ("x",))
    memory[: metric_rows.HEADER_BYTES].cast("Q")[3] += 1
    assert row.read() == [(COUNTER, ("x",), [0.0])]
    row.clear()
    row.add_family(COUNTER)
    row.add_series(0, 1, ("y",))
    row.remove_series(0, 1, ("y",), 0)
    assert row.read() == []
    assert memory[: metric_rows.HEADER_BYTES].cast("Q")[3] % 2 == 0
