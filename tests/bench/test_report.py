"""The last line of `python -m bench` is read by scripts."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(monkeypatch):
    """`bench` is a folder beside the packages, not one of them."""
    monkeypatch.syspath_prepend(str(ROOT))
    names = ("bench.measure", "bench.__main__")
    measure, main = (importlib.import_module(name) for name in names)
    yield measure, main
    for name in [name for name in sys.modules if name.partition(".")[0] == "bench"]:
        del sys.modules[name]


def results(measure, names):
    found = measure.Results()
    for name in names:
        factor = 2.0 if name == "headrace" else 1.0
        found.rounds[name] = [
            measure.Round(n * factor, 3 * n * factor, n, 100, 100, 1) for n in (1.0, 2.0, 3.0)
        ]
    for name, base in (("direct", 0.0), *((name, 1.5) for name in names)):
        found.ttft_ms[name] = [base + n / 100 for n in range(101)]
    return found


def test_the_last_line(bench):
    measure, main = bench
    *_, last = main.report(results(measure, ("headrace", "nginx")), "python -m bench")
    assert last == (
        "bench: nginx_per_token_ratio=2.00 nginx_per_request_ratio=2.00 "
        "added_ttft_p50_ms=1.500 added_ttft_p99_ms=1.500"
    )


def test_the_last_line_without_nginx(bench):
    measure, main = bench
    *_, last = main.report(results(measure, ("headrace",)), "python -m bench")
    assert re.search(r"per_token_ratio=n/a nginx_per_request_ratio=n/a added_ttft_p50", last)


def test_the_last_line_stays_last_and_what_http2_costs_stands_before_it(bench):
    measure, main = bench
    found = results(measure, ("headrace",))
    found.http2 = {0: [1.0, 2.0, 4.0], 1: [3.0, 2.0, 4.0], 50: [0.5, 1.0, 4.0]}
    *_, http1, one, many, last = main.report(found, "python -m bench")
    assert re.fullmatch(r"HTTP/1.1 +2.00 \[1.00, 4.00\] +1.00", http1)
    assert re.fullmatch(r"HTTP/2, 1 to a connection +3.00 \[2.00, 4.00\] +1.00", one)
    assert re.fullmatch(r"HTTP/2, 50 to a connection +1.00 \[0.50, 4.00\] +0.50", many)
    assert last.startswith("bench: nginx_per_token_ratio=")


def test_quantiles_are_interpolated(bench):
    measure, _ = bench
    assert measure.quantile([3, 1, 2], 0.5) == 2
    assert measure.quantile([1, 2], 0.5) == 1.5
    assert measure.quantile(range(101), 0.99) == pytest.approx(99)


def test_the_ratio_is_the_median_of_the_rounds(bench):
    measure, _ = bench
    found = measure.Results()
    ours, theirs = (2, 9, 3), (1, 1, 1)
    found.rounds = {
        name: [measure.Round(n, 1, 1, 1, 1, 1) for n in column]
        for name, column in (("headrace", ours), ("nginx", theirs))
    }
    assert found.ratio("per_request") == 3
