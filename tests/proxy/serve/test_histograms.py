"""Quantiles of histograms, and what came between two readings."""

from __future__ import annotations

import math

import pytest

from proxy.serve.histograms import Distribution, Page

PAGE = """\
# TYPE took histogram
took_bucket{tier="a",part="x",le="0.1"} 5
took_bucket{tier="a",part="x",le="0.2"} 15
took_bucket{tier="a",part="x",le="+Inf"} 20
took_count{tier="a",part="x"} 20
took_sum{tier="a",part="x"} 4
took_bucket{tier="a",part="y",le="0.1"} 1
took_bucket{tier="a",part="y",le="0.2"} 1
took_bucket{tier="a",part="y",le="+Inf"} 1
# TYPE seen counter
seen_total{tier="a"} 7
seen_total{tier="b"} 1
"""


def test_a_page_is_read_by_labels() -> None:
    page = Page(PAGE)
    found = page.histograms("took", ("tier", "part"))
    assert found["a", "x"] == Distribution((0.1, 0.2, math.inf), (5, 10, 5))
    assert page.histograms("took", ("tier",))["a",].counts == (6, 10, 5)
    assert page.values("seen_total", ("tier",)) == {("a",): 7, ("b",): 1}
    assert page.histograms("none", ()) == {}


@pytest.mark.parametrize(
    ("share", "value"), [(0.125, 0.05), (0.25, 0.1), (0.5, 0.15), (0.75, 0.2), (0.99, 0.2)]
)
def test_a_quantile_is_interpolated_in_its_bucket(share: float, value: float) -> None:
    assert Distribution((0.1, 0.2, math.inf), (5, 10, 5)).quantile(share) == pytest.approx(value)


def test_nothing_has_no_quantile() -> None:
    assert Distribution((0.1, math.inf), (0, 0)).quantile(0.5) is None


def test_what_came_since() -> None:
    before = Distribution((0.1, math.inf), (5, 1))
    assert Distribution((0.1, math.inf), (7, 1)).since(before).counts == (2, 0)
    assert before.since(None) == before
    anew = Distribution((0.1, math.inf), (1, 0))
    assert anew.since(before) == anew
