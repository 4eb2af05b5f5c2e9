"""Publishes the KV events of the fake replica over ZeroMQ, and answers replays. Performs.

As vLLM's `distributed/kv_events.py`: PUB frames are topic, number (8 bytes, big-endian), batch; a
replay is asked for by the number to begin with, and ends with a number of all ones. An endpoint
without a wildcard would make vLLM connect; here `connect` says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from loadtest.replica.behaviour import Behaviour
from loadtest.replica.engine import Engine
from loadtest.replica.kv_log import KvLog
from loadtest.replica.options import ReplicaOptions
from loadtest.replica.prefix_cache import PrefixCache

_END = b"\xff" * 8


class KvPublishers:
    """One for each data-parallel rank. `behaviour` is asked whenever a batch is published."""

    def __init__(
        self,
        options: ReplicaOptions,
        engines: Sequence[Engine],
        behaviour: Callable[[], Behaviour],
    ) -> None:
        self.ranks = [
            KvPublisher(options, engine.cache, behaviour, rank)
            for rank, engine in enumerate(engines)
        ]

    def __repr__(self) -> str:
        return f"<KvPublishers {self.ranks}>"

    @property
    def is_open(self) -> bool:
        return self.ranks[0].is_open

    def sources(self) -> dict[str, object]:
        """What `GET /kv_event_sources` answers: by data-parallel rank."""
        return {str(number): rank.source() for number, rank in enumerate(self.ranks)}

    def start(self) -> None:
        for rank in self.ranks:
            rank.start()

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()

    def restart(self) -> None:
        """The engines begin anew at the same places: empty caches, numbers from 0."""
        for rank in self.ranks:
            rank.restart()


class KvPublisher:
    """The events of one engine's cache."""

    def __init__(
        self,
        options: ReplicaOptions,
        cache: PrefixCache,
        behaviour: Callable[[], Behaviour],
        rank: int = 0,
    ) -> None:
        self._options = options
        self._behaviour = behaviour
        self._log = KvLog(options.kv_events, options.block_size, options.kv_buffer_steps, rank)
        self._cache = cache
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._publish: zmq.Socket[bytes] | None = None
        self._replay: zmq.Socket[bytes] | None = None
        self._flushing = False
        self._published = 0
        self._places: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<KvPublisher {self._log} at {self._places}>"

    @property
    def is_open(self) -> bool:
        return self._context is not None

    def source(self) -> dict[str, object]:
        options = self._options
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self._places.get("publish", options.kv_endpoint),
            "replay_endpoint": self._places.get("replay"),
            "buffer_steps": options.kv_buffer_steps,
            "hwm": 100_000,
            "max_queue_size": 100_000,
            "topic": options.kv_topic,
        }

    def start(self) -> None:
        """Bind, or connect, and tell of the cache from now on."""
        options = self._options
        if options.kv_events == "off" or self._context is not None:
            return
        self._cache.listener = self
        self._context = zmq.Context()
        self._publish = self._context.socket(zmq.PUB)
        self._publish.setsockopt(zmq.SNDHWM, 100_000)
        endpoint = self._places.get("publish", options.kv_endpoint)
        if options.kv_connect:
            self._publish.connect(endpoint)
        else:
            self._publish.bind(endpoint)
            self._places["publish"] = self._publish.getsockopt_string(zmq.LAST_ENDPOINT)
        if options.kv_replay_endpoint:
            self._replay = self._context.socket(zmq.ROUTER)
            self._replay.bind(self._places.get("replay", options.kv_replay_endpoint))
            self._places["replay"] = self._replay.getsockopt_string(zmq.LAST_ENDPOINT)
            asyncio.get_running_loop().add_reader(self._replay.FD, self._answer)

    def close(self) -> None:
        if self._context is None:
            return
        self._cache.listener = None
        if self._replay is not None:
            asyncio.get_running_loop().remove_reader(self._replay.FD)
        self._context.destroy(linger=0)
        self._context = self._publish = self._replay = None

    def restart(self) -> None:
        self.close()
        self._cache.clear()
        self._log.restart()
        self.start()

    def forget_places(self) -> None:
        """Take other ports at the next start, as a restarted vLLM does that was given none."""
        self._places.clear()

    # --- the cache tells

    def stored(self, parent: int | None, keys: list[int], ids: Any, salt: str) -> None:
        self._log.twice = "kv_twice" in self._behaviour()
        self._log.stored(parent, keys, ids, salt)
        self._soon()

    def removed(self, keys: list[int]) -> None:
        self._log.twice = "kv_twice" in self._behaviour()
        self._log.removed(keys)
        self._soon()

    def cleared(self) -> None:
        self._log.cleared()
        self._soon()

    def _soon(self) -> None:
        """What one step of the engine did is one batch."""
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._publish is None:
            return
        self._published += 1
        behaviour = self._behaviour()
        lost, dropped = (
            name in behaviour and self._published % max(1, int(behaviour[name])) == 0
            for name in ("kv_lose", "kv_drop")
        )
        batch = self._log.take(time.time(), remember=not lost)
        if batch is not None and not lost and not dropped:
            self._publish.send_multipart(self._frames(*batch))
        if self._replay is not None:
            self._answer()  # sending may have swallowed what would have woken it

    def _frames(self, number: int, data: bytes) -> list[bytes]:
        return [self._options.kv_topic.encode(), number.to_bytes(8, "big"), data]

    def _answer(self) -> None:
        """Every replay that was asked for."""
        replay = self._replay
        while replay is not None:
            try:
                client, empty, number = replay.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            for batch in self._log.since(int.from_bytes(number, "big")):
                replay.send_multipart([client, empty, *self._frames(*batch)])
            replay.send_multipart([client, empty, b"", _END, b""])
