"""The text of /metrics: vLLM's names and labels for what the fake engine counts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loadtest.replica.engine import Engine, Histogram
from loadtest.replica.options import ReplicaOptions


def exposition(engine: Engine, options: ReplicaOptions, rank: int = 0) -> str:
    """Of one engine; only the first says what the families are."""
    if options.engine == "sglang":
        return _sglang(engine, options, rank)
    lines = _lines(engine, options)
    if not rank:
        return "".join(lines)
    samples = [line for line in "".join(lines).splitlines(keepends=True) if line[0] != "#"]
    return "".join(samples).replace('engine="0"', f'engine="{rank}"')


def _sglang(engine: Engine, options: ReplicaOptions, rank: int) -> str:
    """Gauges of SGLang 0.5.23 (srt/observability/metrics_collector.py)."""
    gauges = {
        "num_running_reqs": len(engine.running),
        "num_queue_reqs": len(engine.waiting),
        "token_usage": engine.kv_cache_usage(),
        "max_total_num_tokens": options.num_blocks * options.block_size,
    }
    labels = f'dp_rank="{rank}",engine_type="unified",model_name="{options.model}",tp_rank="0"'
    return "".join(
        f"# TYPE sglang:{name} gauge\nsglang:{name}{{{labels}}} {float(value)}\n"
        for name, value in gauges.items()
    )


def _lines(engine: Engine, options: ReplicaOptions) -> Iterator[str]:
    counters, labels = engine.counters, f'engine="0",model_name="{options.model}"'

    def family(name: str, kind: str, text: str, samples: Mapping[str, float]) -> Iterator[str]:
        suffix = "_total" if kind == "counter" else ""
        yield f"# HELP vllm:{name}{suffix} {text}\n# TYPE vllm:{name}{suffix} {kind}\n"
        for extra, value in samples.items():
            yield f"vllm:{name}{suffix}{{{labels}{extra}}} {float(value)}\n"

    def gauge(name: str, text: str, value: float) -> Iterator[str]:
        return family(name, "gauge", text, {"": value})

    def counter(name: str, text: str, value: float) -> Iterator[str]:
        return family(name, "counter", text, {"": value})

    running, waiting = len(engine.running), len(engine.waiting)
    computed = counters.prompt_tokens - counters.cached_tokens
    yield from gauge("num_requests_running", "Number of requests in execution batches.", running)
    yield from gauge("num_requests_waiting", "Number of requests waiting.", waiting)
    reasons = {',reason="capacity"': waiting, ',reason="deferred"': 0}
    yield from family("num_requests_waiting_by_reason", "gauge", "Waiting, by reason.", reasons)
    yield from gauge("kv_cache_usage_perc", "KV-cache usage, 0 to 1.", engine.kv_cache_usage())
    queries = counters.prompt_tokens
    yield from counter("prefix_cache_queries", "Prefix cache queries, in tokens.", queries)
    yield from counter("prefix_cache_hits", "Prefix cache hits, in tokens.", counters.cached_tokens)
    yield from counter("num_preemptions", "Cumulative number of preemptions.", 0)
    yield from counter("prompt_tokens", "Prefill tokens processed.", counters.prompt_tokens)
    sources = {
        ',source="local_compute"': computed,
        ',source="local_cache_hit"': counters.cached_tokens,
        ',source="external_kv_transfer"': 0,
    }
    yield from family("prompt_tokens_by_source", "counter", "Prompt tokens by source.", sources)
    yield from counter("prompt_tokens_cached", "Cached prompt tokens.", counters.cached_tokens)
    generated = counters.generation_tokens + sum(job.sent_tokens for job in engine.running)
    yield from counter("generation_tokens", "Generation tokens processed.", generated)
    name = "vllm:request_success_total"
    yield f"# HELP {name} Successfully processed requests.\n# TYPE {name} counter\n"
    for reason, count in counters.finished_requests.items():
        # as in the real server, aborted requests are not counted here
        value = 0.0 if reason == "abort" else float(count)
        model = options.model
        yield f'{name}{{engine="0",finished_reason="{reason}",model_name="{model}"}} {value}\n'
    name = "vllm:admission_rejections_total"
    yield f"# HELP {name} Admissions rejected by a queue limit.\n# TYPE {name} counter\n"
    rejected = float(counters.rejected_requests)
    yield f'{name}{{model_name="{options.model}",reason="max_num_queued_reqs"}} {rejected}\n'
    yield from _histogram("time_to_first_token_seconds", counters.ttft_s, options.model)
    yield from _histogram("e2e_request_latency_seconds", counters.e2e_s, options.model)
    yield from _histogram("request_queue_time_seconds", counters.queue_s, options.model)
    name = "vllm:cache_config_info"
    yield f"# HELP {name} Information of the LLMEngine CacheConfig\n# TYPE {name} gauge\n"
    yield (
        f'{name}{{_block_size_resolved="True",block_size="{options.block_size}",'
        f'cache_dtype="auto",enable_prefix_caching="True",engine="0",'
        f'kv_cache_size_tokens="{options.num_blocks * options.block_size}",'
        f'num_gpu_blocks="{options.num_blocks}",num_gpu_blocks_override="None",'
        f'prefix_caching_hash_algo="sha256"}} 1.0\n'
    )


def _histogram(name: str, histogram: Histogram, model: str) -> Iterator[str]:
    yield f"# HELP vllm:{name} Histogram of {name}.\n# TYPE vllm:{name} histogram\n"
    for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
        labels = f'engine="0",le="{bound}",model_name="{model}"'
        yield f"vllm:{name}_bucket{{{labels}}} {float(count)}\n"
    labels = f'engine="0",le="+Inf",model_name="{model}"'
    yield f"vllm:{name}_bucket{{{labels}}} {float(histogram.count)}\n"
    yield f'vllm:{name}_count{{engine="0",model_name="{model}"}} {float(histogram.count)}\n'
    yield f'vllm:{name}_sum{{engine="0",model_name="{model}"}} {histogram.sum}\n'
