"""The names in vLLM's /metrics (v1/metrics/loggers.py, 0.18 to 0.33, also its Rust frontend)."""

from __future__ import annotations

from backend.load import LoadNames

VLLM = LoadNames(
    running=b"vllm:num_requests_running",
    waiting=b"vllm:num_requests_waiting",
    kv_use=b"vllm:kv_cache_usage_perc",
    cache_info=b"vllm:cache_config_info",
    block_size=b"block_size",
    blocks=b"num_gpu_blocks",
)
