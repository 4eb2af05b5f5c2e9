"""What `python -m bench.peers` and `python -m bench.slopes` print."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def load(monkeypatch):
    """`bench` is a folder beside the packages, not one of them."""
    monkeypatch.syspath_prepend(str(ROOT))
    yield importlib.import_module
    for name in [name for name in sys.modules if name.partition(".")[0] == "bench"]:
        del sys.modules[name]


def test_every_proxy_has_a_row_with_every_column(load):
    peers, measure = load("bench.peers"), load("bench.measure")
    found = peers.Found()
    for name, factor in (("headrace", 2.0), ("nginx", 1.0)):
        found.results.rounds[name] = [measure.Round(100 * factor, 8 * factor, 9, 100, 100, 1)] * 3
    for name, added in (("direct", 0.0), ("headrace", 1.0), ("nginx", 0.5)):
        for quick in ("", peers.QUICK):
            found.results.ttft_ms[name + quick] = [1 + added + n / 100 for n in range(101)]
        for streams in peers.CROWDS:
            found.crowded.setdefault(streams, {})[name] = [2 + added * streams] * 10
    about = {name: peers.About("what", "1", (9.0, 5.0)) for name in ("headrace", "nginx")}
    *_, head, rule, ours, nginx = peers.report(found, about)
    assert len({line.count("|") for line in (head, rule, ours, nginx)}) == 1
    assert ours.startswith("| headrace | what | 200 | 16.0 | 5000 | 1.00 / 1.00 |")
    assert nginx.endswith("| 16.00 / 16.00 | 100.00 / 100.00 | 9 (5) |")
    row = peers.document(found, about)["proxies"]["nginx"]
    assert row["added_ttft_200_streams_ms"] == (100.0, 100.0)


def test_a_line_is_the_greatest_number_by_the_least(load):
    slopes = load("bench.slopes")
    line = slopes.Line("tenants", "request", {10: [100.0, 104, 900], 1000: [150.0, 150, 150]})
    assert line.ratio == pytest.approx(1.5)
    assert [row.split()[-1] for row in line.rows()] == ["1.000", "1.500"]


def test_a_folder_of_a_proxys_own_comes_first(load, tmp_path):
    setups = load("bench.peer_setups")
    for folder in ("sglang-router", "smg"):
        binary = tmp_path / folder / "bin" / "smg"
        binary.parent.mkdir(parents=True)
        binary.touch(mode=0o755)
    smg = next(setup for setup in setups.SETUPS if setup.name == "smg")
    folders = sorted(path / "bin" for path in tmp_path.iterdir())
    assert setups.find(smg, folders) == str(tmp_path / "smg" / "bin" / "smg")
