"""vLLM, also with its Rust frontend. Names of metrics: v1/metrics/loggers.py, 0.18 to 0.33."""

from __future__ import annotations

from backend.engines.dialect import Dialect
from backend.load import LoadNames

LOAD = LoadNames(
    running=b"vllm:num_requests_running",
    waiting=b"vllm:num_requests_waiting",
    kv_use=b"vllm:kv_cache_usage_perc",
    rank=b"engine",
    cache_info=b"vllm:cache_config_info",
    block_size=b"block_size",
    blocks=b"num_gpu_blocks",
)

VLLM = Dialect(LOAD)
