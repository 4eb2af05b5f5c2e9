from __future__ import annotations

import pytest
from used_engine import samples, used_engine

from loadtest.replica.exposition import exposition


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
