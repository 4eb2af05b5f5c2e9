"""Misbehaviours by name: which there are, and how `NAME[=value],NAME[=value]` is read.

The same words work in the header `x-fake`, in the body field `"user": "fake:..."` (which a gateway
forwards unchanged), on the command line (`--fake`) and in `PUT /fake/behaviour`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

Behaviour = Mapping[str, float]

# name -> (value when none is given, what it does)
KNOWN: dict[str, tuple[float, str]] = {
    # before the head
    "refuse": (math.inf, "close the listener for N s (process-wide only)"),
    "reset_before_head": (0, "read the request, then reset the connection"),
    "slow_head": (1, "wait N s before the response head"),
    "status": (503, "answer N with vLLM's JSON error"),
    "garbage": (0, "answer bytes that are no HTTP"),
    "header_bomb": (1_048_576, "answer about N bytes of headers, then an empty stream"),
    "interim_flood": (10_000, "send N `102 Processing` heads before the real one"),
    "switching": (0, "answer 101 Switching Protocols, unasked"),
    # where a stream stops
    "head_only": (0, "send the head, then close (no last chunk)"),
    "empty": (0, "send the head and the last chunk: a clean end without events"),
    "stall_first": (math.inf, "send the head, then nothing for N s"),
    "stall_mid": (2, "stop after N tokens, for ever"),
    "kill_mid": (2, "reset the connection after N tokens"),
    "exit_mid": (2, "die after N tokens: the whole process, or all connections in-process"),
    "truncate": (2, "after N tokens send half a chunk, then close"),
    "garbage_mid": (2, "after N tokens send bytes that are no chunk, then close"),
    "error_first": (503, "error event with code N as the first event, then [DONE]"),
    "error_mid": (2, "error event (code 500) after N tokens, then [DONE]"),
    "flood": (8, "send N MiB of events as fast as the reader allows, then go on"),
    # how an otherwise good answer differs
    "no_done": (0, "end cleanly without [DONE]"),
    "no_usage": (0, "leave usage out although it was asked for"),
    "one_byte": (0, "write every byte alone"),
    "split": (1, "cut every write at random places; N is the seed"),
    "keep_alive": (0.05, "send `: keep-alive` comments every N s while waiting"),
    "stamp": (0, "put the monotonic send time in ns into every event as `sent_at_ns`"),
    "tokens": (16, "answer N tokens, whatever max_tokens says"),
    "token_ms": (0, "N ms between tokens"),
    "prefill_ms": (0, "N ms before the first token, beside the queue"),
    "ignore_token_ids": (
        0,
        "ignore kv_transfer_params.prompt_token_ids, as the Rust frontend does",
    ),
    # the other endpoints
    "health": (503, "answer /health with N"),
    "metrics": (503, "answer /metrics with N"),
    "slow_health": (1, "wait N s before answering /health"),
    # KV events (process-wide only)
    "kv_drop": (3, "publish every Nth batch of KV events to nobody; a replay has it"),
    "kv_lose": (3, "lose every Nth batch of KV events for good"),
    "kv_twice": (0, "announce every block twice, and gone twice"),
}

NOTHING: Behaviour = {}


def parse_behaviour(text: str) -> Behaviour:
    """Read `NAME[=value],...`; the empty text is "behave". ValueError names what is not known."""
    behaviour: dict[str, float] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, value = part.partition("=")
        if name not in KNOWN:
            raise ValueError(f"unknown behaviour {name!r}; there are {', '.join(KNOWN)}")
        behaviour[name] = float(value) if value else KNOWN[name][0]
    return behaviour


def requested(default: Behaviour, header: str, user: object) -> Behaviour:
    """What one request asks for: the process's default, the header and the body's `user` on top."""
    field = user[5:] if isinstance(user, str) and user.startswith("fake:") else ""
    if not header and not field:
        return default
    return {**default, **parse_behaviour(header), **parse_behaviour(field)}
