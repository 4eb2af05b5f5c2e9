"""What vLLM says of its load beside what is read from it, and beside what the fake one says."""

from __future__ import annotations

from beside import beside
from used_engine import samples, used_engine

from backend.engines.vllm import LOAD as VLLM
from backend.load import parse_load
from loadtest.replica.exposition import exposition

SCRAPE = "vllm/fixtures/metrics_cpu_0.32.0.txt"


def test_a_recorded_scrape_is_read() -> None:
    load = parse_load(beside(SCRAPE).read_bytes(), VLLM, 1.0)
    assert load is not None
    assert (load.running, load.waiting, load.kv_use) == (0, 0, 0)
    assert load.kv_tokens == 128 * 16384


def test_names_and_labels_of_the_fake_one_are_those_of_vllm() -> None:
    theirs = samples(beside(SCRAPE).read_text())
    for name, ours in samples(exposition(*used_engine())).items():
        assert name in theirs
        known = {frozenset(key for key, _ in labels) for labels in theirs[name]}
        for labels in ours:
            names = frozenset(key for key, _ in labels)
            assert any(names <= full for full in known), name
