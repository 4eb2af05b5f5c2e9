from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadtest.replica.engine import Engine, Job
from loadtest.replica.exposition import exposition
from loadtest.replica.options import ReplicaOptions

CAPTURE = Path(__file__).parents[3] / "shared" / "vllm" / "fixtures" / "metrics_cpu_0.32.0.txt"


def samples(text):
    """name -> {labels: value}"""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def used_engine():
    options = ReplicaOptions(max_running=1, block_size=4, num_blocks=10)
    engine = Engine(options)
    job = Job([1] * 9, [5, 6])
    engine.submit(job, now=0.0)
    job.sent_tokens = 2
    engine.finish(job, "length", now=2.0)
    engine.submit(Job([1] * 9, [5, 6]), now=3.0)
    engine.submit(Job([2] * 9, [5, 6]), now=3.0)
    return engine, options


def test_values():
    found = samples(exposition(*used_engine()))
    base = (("engine", "0"), ("model_name", "demo"))
    assert found["vllm:num_requests_running"][base] == 1
    assert found["vllm:num_requests_waiting"][base] == 1
    assert found["vllm:kv_cache_usage_perc"][base] == pytest.approx(0.3)
    assert found["vllm:prefix_cache_queries_total"][base] == 18
    assert found["vllm:prefix_cache_hits_total"][base] == 8
    assert found["vllm:generation_tokens_total"][base] == 2
    assert found["vllm:e2e_request_latency_seconds_sum"][base] == 2
    (labels,) = found["vllm:cache_config_info"]
    assert dict(labels)["block_size"] == "4"
    assert dict(labels)["num_gpu_blocks"] == "10"


@pytest.mark.skipif(not CAPTURE.exists(), reason="no captures beside the project")
def test_names_and_labels_are_those_of_vllm():
    theirs = samples(CAPTURE.read_text())
    for name, ours in samples(exposition(*used_engine())).items():
        assert name in theirs
        known = {frozenset(key for key, _ in labels) for labels in theirs[name]}
        for labels in ours:
            names = frozenset(key for key, _ in labels)
            assert any(names <= full for full in known)
