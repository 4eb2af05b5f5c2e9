"""SGLang, as read in the wheel of 0.5.23.

Metrics (`--enable-metrics`): srt/observability/metrics_collector.py. `/health` is answered after a
second or more, as it waits for a token of a request of its own (srt/entrypoints/http_server.py).
An error in one piece is not wrapped in `error` (srt/entrypoints/openai/serving_base.py); one in a
stream is. Its KV events are vLLM's, and nobody tells where they are, so `kv_events` must.
"""

from __future__ import annotations

from backend.engines.dialect import Dialect
from backend.load import LoadNames

LOAD = LoadNames(
    running=b"sglang:num_running_reqs",
    waiting=b"sglang:num_queue_reqs",
    kv_use=b"sglang:token_usage",
    rank=b"dp_rank",
    kv_tokens=b"sglang:max_total_num_tokens",
    split_by=b"priority",  # with --enable-priority-scheduling; the total has an empty one
)

SGLANG = Dialect(LOAD, tells_sources=False)
