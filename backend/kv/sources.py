"""Where the KV events of a replica are: as configured, or as the replica itself tells. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from backend.config import KvEventsConfig

SOURCES_PATH = "/kv_event_sources"
"""vLLM from 0.31 on answers there, by data-parallel rank."""
MAX_SOURCES_BYTES = 256 * 1024
_MOST_RANKS = 256
_ANYWHERE = re.compile(r"^tcp://(\*|0\.0\.0\.0|\[::\]|::)(?=:\d+$)")
_ENDPOINT = re.compile(r"^(tcp|ipc)://[\x21-\x7e]{1,240}$")


class Source(NamedTuple):
    """One publisher. `bind`: it connects to us."""

    endpoint: str
    replay_endpoint: str | None
    topic: str
    bind: bool = False


def configured(config: KvEventsConfig) -> dict[int, Source]:
    """By rank, of which there is one."""
    return {0: Source(config.endpoint, config.replay_endpoint, config.topic, config.bind)}


def told_by(body: bytes, host: str) -> dict[int, Source]:
    """By rank, from the answer of the replica on `host`; empty when it publishes nothing."""
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
    if not isinstance(document, dict) or len(document) > _MOST_RANKS:
        return {}
    found = {}
    for rank, item in document.items():
        if not re.fullmatch(r"\d{1,4}", rank) or not isinstance(item, dict):
            continue
        if (source := _source(item, host)) is not None:
            found[int(rank)] = source
    return found


def _source(item: Mapping[str, object], host: str) -> Source | None:
    if item.get("enable_kv_cache_events") is False or item.get("publisher", "zmq") != "zmq":
        return None
    endpoint = _reachable(item.get("endpoint"), host)
    if endpoint is None:
        return None
    topic = item.get("topic")
    return Source(
        endpoint,
        _reachable(item.get("replay_endpoint"), host),
        topic if isinstance(topic, str) else "",
    )


def _reachable(endpoint: object, host: str) -> str | None:
    """The endpoint, on the replica's host where it says "any address"."""
    if not isinstance(endpoint, str) or not _ENDPOINT.match(endpoint):
        return None
    bracketed = f"[{host}]" if ":" in host else host
    endpoint = _ANYWHERE.sub(lambda _: f"tcp://{bracketed}", endpoint)
    return None if "*" in endpoint or endpoint.endswith(":0") else endpoint
