"""What one worker hears of a replica all of them know."""

from __future__ import annotations

import pytest

from core.replica import Load
from core.shared_probes import SharedProbes


def test_the_newest_answer_of_any_worker_counts() -> None:
    memory = SharedProbes(3, 2)
    one, two, three = [memory.cell(1, worker) for worker in range(3)]
    assert one.probed() == (0.0, 0)
    two.begin_probe(4.0)
    assert (one.probe_begun_at(), two.probe_begun_at()) == (4.0, 4.0)
    two.put_probe(2, 5.0)
    three.put_probe(1, 4.5)
    assert one.probed() == two.probed() == (5.0, 2)
    one.put_probe(0, 6.0)
    assert three.probed() == (6.0, 0)
    assert memory.cell(0, 0).probed() == (0.0, 0)  # another replica


def test_doubts_are_heard_by_all() -> None:
    memory = SharedProbes(2, 1)
    one, two = memory.cell(0, 0), memory.cell(0, 1)
    assert two.doubted_at() == 0.0
    one.doubt(3.0)
    assert one.doubted_at() == two.doubted_at() == 3.0


@pytest.mark.parametrize("kv_tokens", [None, 0, 600_000])
def test_a_load_comes_whole(kv_tokens: int | None) -> None:
    memory = SharedProbes(2, 1)
    one, two = memory.cell(0, 0), memory.cell(0, 1)
    assert two.load() is None
    one.begin_scrape(6.5)
    assert two.scrape_begun_at() == 6.5
    load = Load(3.0, 1.0, 0.25, 7.0, kv_tokens)
    one.put_load(load)
    assert one.load() == two.load() == load
    two.put_load(Load(4.0, 1.0, 0.25, 6.0))
    assert one.load() == load


def test_there_is_no_place_beyond_the_last() -> None:
    with pytest.raises(IndexError):
        SharedProbes(1, 2).cell(2, 0)
