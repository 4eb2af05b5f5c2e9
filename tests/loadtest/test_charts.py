"""Charts are well-formed and hold what they were given."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.charts import Bar, Line, Span, bars, lines, round_up, short, spans, waterfall

SVG = "{http://www.w3.org/2000/svg}"


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1))


@given(st.lists(st.none() | st.floats(0, 1e7), max_size=100))
def test_a_line_stays_in_its_picture_and_skips_what_is_not_known(
    values: list[float | None],
) -> None:
    tree = parsed(lines("a", "ms", [Line("n", "a", values)]))
    path = tree.find(f"{SVG}path")
    assert path is not None
    points = [
        (float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path.get("d", ""))
    ]
    assert len(points) == sum(value is not None for value in values)
    assert all(0 <= x <= 760 and 0 <= y <= 170 for x, y in points)


def test_a_gap_begins_a_new_piece() -> None:
    path = parsed(lines("a", "ms", [Line("n", "a", [1, None, 2, 3])])).find(f"{SVG}path")
    assert path is not None
    assert re.findall("[ML]", path.get("d", "")) == ["M", "M", "L"]


@given(st.lists(st.tuples(*[st.floats(0, 1e6)] * 3), max_size=10))
def test_a_span_lies_on_its_row_in_order(drawn: list[tuple[float, float, float]]) -> None:
    rows = [Span("<n>", *sorted(each)) for each in drawn]
    tree = parsed(spans("a & b", "ms", rows))
    for group in tree.findall(f"{SVG}g"):
        rule, dot = group.find(f"{SVG}line"), group.find(f"{SVG}circle")
        assert rule is not None
        assert dot is not None
        low, value, high = (
            float(each or "") for each in (rule.get("x1"), dot.get("cx"), rule.get("x2"))
        )
        assert 0 <= low <= value <= high <= 760
    assert len(tree.findall(f"{SVG}g")) == len(rows)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=61))
def test_every_bin_that_is_not_empty_has_a_bar(counts: list[int]) -> None:
    tree = parsed(bars("a", "ms", counts, 0.01, 10))
    assert len(tree.findall(f"{SVG}rect")) == sum(count > 0 for count in counts)


@pytest.mark.parametrize(("value", "up"), [(0, 1), (0.3, 0.5), (1, 1), (1.1, 2), (501, 1000)])
def test_round_up(value: float, up: float) -> None:
    assert round_up(value) == pytest.approx(up)


@pytest.mark.parametrize(
    ("value", "text"), [(0.05, "0.05"), (1.234, "1.23"), (150, "150"), (1000, "1000"), (2e4, "20k")]
)
def test_short(value: float, text: str) -> None:
    assert short(value) == text


@given(st.lists(st.floats(0, 1e6), max_size=12))
def test_a_waterfall_stays_in_its_picture(lengths: list[float]) -> None:
    rows = [Bar(f"<{n}>", "a", sum(lengths[:n]), each, "x") for n, each in enumerate(lengths)]
    tree = parsed(waterfall("a & b", "ms", rows))
    found = tree.findall(f"{SVG}rect")
    assert len(found) == len(rows)
    edges = [(float(each.get("x", "")), float(each.get("width", ""))) for each in found]
    assert all(left >= 0 and left + wide <= 760 for left, wide in edges)


def test_marks_are_drawn_and_a_scale_may_leave_out_zero() -> None:
    drawn = [Line("n", "a", [100, 101, 102])]
    tree = parsed(lines("a", "MiB", drawn, [(1, "replica_down")], from_zero=False))
    words = [each.text for each in tree.findall(f"{SVG}text")]
    assert "replica_down" in words
    assert "0" not in words
    assert "0" in [each.text for each in parsed(lines("a", "MiB", drawn)).findall(f"{SVG}text")]
