"""What one fake replica is: its model, its sizes and its speed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ENGINES = ("vllm", "sglang")
DEMO_MODEL = Path(__file__).parent.parent / "demo_model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOptions:
    """Speeds of 0 mean "takes no time"; the defaults answer as fast as the machine can.

    engine: `vllm`, or `sglang` where that differs: names of metrics, errors that are not wrapped,
    token ids in `input_ids`, nobody to ask where KV events are.
    adapters: other names that it answers to, each with a cache of its own.
    behaviour: misbehaviours of every request (see `behaviour.KNOWN`).
    max_queued: waiting requests beyond this are refused as vLLM does; None = never.
    keep_alive_s: idle connections are closed after this (vLLM: 5 s).
    data_parallel: engines behind the one address, each with a cache of its own.
    kv_events: off, or the encoding of KV events (`kv_log.ENCODINGS`), published at kv_endpoint
    (`*` for a port: a free one) and answered for at kv_replay_endpoint (empty: never).
    kv_connect: connect to kv_endpoint instead of binding it.
    keep_log: remembered requests; keep_bodies: whether they keep headers and body.
    """

    model: str = "demo"
    engine: str = "vllm"
    adapters: tuple[str, ...] = ()
    tokenizer: Path = DEMO_MODEL / "tokenizer.json"
    chat_template: Path = DEMO_MODEL / "chat_template.jinja"
    max_model_len: int = 32_768
    block_size: int = 16
    num_blocks: int = 8_192
    max_running: int = 256
    max_queued: int | None = None
    prefill_base_ms: float = 0.0
    prefill_tokens_per_s: float = 0.0
    token_ms: float = 0.0
    output_tokens: int = 16
    keep_alive_s: float = 5.0
    api_key: str | None = None
    behaviour: str = ""
    data_parallel: int = 1
    kv_events: str = "off"
    kv_endpoint: str = "tcp://127.0.0.1:*"
    kv_connect: bool = False
    kv_replay_endpoint: str = "tcp://127.0.0.1:*"
    kv_topic: str = "kv@demo"
    kv_buffer_steps: int = 10_000
    keep_log: int = 10_000
    keep_bodies: bool = True
