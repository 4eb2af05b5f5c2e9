"""The routes beside generation: models, health, metrics, and /fake/ for whoever tests. Performs."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from loadtest.replica import dialect
from loadtest.replica.behaviour import Behaviour
from loadtest.replica.connection import Connection, Request
from loadtest.replica.engine import Engine
from loadtest.replica.exposition import exposition
from loadtest.replica.kv_publisher import KvPublishers
from loadtest.replica.options import ReplicaOptions
from loadtest.replica.record import Record
from loadtest.replica.tokens import Speech

Route = tuple[str, Callable[[Connection, Request], None]]

JSON = b"application/json"
TEXT = b"text/plain; version=1.0.0; charset=utf-8"


class Heads(Protocol):
    """Makes response heads."""

    def head(self, status: int, content_type: bytes = b"", length: int | None = None) -> bytes: ...
    def changed(self) -> None: ...


class Replica(Heads, Protocol):
    """What the routes show of the replica."""

    options: ReplicaOptions
    engine: Engine
    kv: KvPublishers
    engines: Sequence[Engine]

    @property
    def connections(self) -> Collection[Connection]: ...
    @property
    def requests(self) -> Collection[Record]: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def behaviour(self) -> Behaviour: ...

    def behave(self, text: str) -> None: ...


def answer(
    heads: Heads,
    connection: Connection,
    status: int,
    content_type: bytes = b"",
    body: bytes = b"",
) -> None:
    """A whole answer of known length."""
    connection.write(heads.head(status, content_type, len(body)) + body)
    connection.finished()
    heads.changed()


def answer_json(
    heads: Heads, connection: Connection, status: int, document: dict[str, object]
) -> None:
    answer(heads, connection, status, JSON, dialect.compact(document).encode())


class Operations:
    """The handlers, and the paths and methods they answer to."""

    def __init__(self, replica: Replica, speech: Speech) -> None:
        self._replica = replica
        self._speech = speech

    def __repr__(self) -> str:
        return f"<Operations of {self._replica!r}>"

    def routes(self) -> dict[str, Route]:
        return {
            "/v1/models": ("GET", self._models),
            "/health": ("GET", self._health),
            "/ping": ("GET", self._health),
            "/load": ("GET", self._load),
            "/metrics": ("GET", self._metrics),
            "/version": ("GET", self._version),
            "/kv_event_sources": ("GET", self._kv_event_sources),
            "/fake/log": ("GET", self._log),
            "/fake/state": ("GET", self._state),
            "/fake/behaviour": ("PUT", self._set_behaviour),
            "/fake/restart": ("POST", self._restart),
            "/reset_prefix_cache": ("POST", self._reset_prefix_cache),
        }

    def _models(self, connection: Connection, request: Request) -> None:
        options = self._replica.options
        card = dialect.model_card(options.model, options.max_model_len, int(time.time()))
        answer_json(self._replica, connection, 200, card)

    def _health(self, connection: Connection, request: Request) -> None:
        status = int(self._replica.behaviour.get("health", 200))
        seconds = self._replica.behaviour.get("slow_health", 0.0)
        if not seconds:
            answer(self._replica, connection, status)
        elif math.isfinite(seconds):
            loop = asyncio.get_running_loop()
            connection.on_lost = loop.call_later(
                seconds, answer, self._replica, connection, status
            ).cancel

    def _load(self, connection: Connection, request: Request) -> None:
        answer_json(self._replica, connection, 200, {"server_load": self._replica.in_flight})

    def _metrics(self, connection: Connection, request: Request) -> None:
        engines, options = self._replica.engines, self._replica.options
        text = "".join([exposition(e, options, rank) for rank, e in enumerate(engines)]).encode()
        answer(
            self._replica, connection, int(self._replica.behaviour.get("metrics", 200)), TEXT, text
        )

    def _version(self, connection: Connection, request: Request) -> None:
        answer_json(self._replica, connection, 200, {"version": dialect.VERSION})

    def _kv_event_sources(self, connection: Connection, request: Request) -> None:
        if self._replica.kv.is_open and self._replica.options.engine == "vllm":
            answer_json(self._replica, connection, 200, self._replica.kv.sources())
        else:
            answer_json(self._replica, connection, 404, {"detail": "Not Found"})

    def _restart(self, connection: Connection, request: Request) -> None:
        """The engine alone: its cache and its events begin anew."""
        self._replica.kv.restart()
        answer(self._replica, connection, 200)

    def _reset_prefix_cache(self, connection: Connection, request: Request) -> None:
        for engine in self._replica.engines:
            engine.cache.clear()
        answer(self._replica, connection, 200)

    def _log(self, connection: Connection, request: Request) -> None:
        lines = "".join(f"{json.dumps(record.as_json())}\n" for record in self._replica.requests)
        answer(self._replica, connection, 200, b"application/jsonl", lines.encode())

    def _state(self, connection: Connection, request: Request) -> None:
        engine = self._replica.engine
        document: dict[str, object] = {
            "in_flight": self._replica.in_flight,
            "running": len(engine.running),
            "waiting": len(engine.waiting),
            "connections": len(self._replica.connections),
            "cached_blocks": len(engine.cache),
            "seen": len(self._replica.requests),
            "now": time.monotonic(),
        }
        answer_json(self._replica, connection, 200, document)

    def _set_behaviour(self, connection: Connection, request: Request) -> None:
        try:
            self._replica.behave(request.body.decode().strip())
        except ValueError as error:
            answer_json(self._replica, connection, 400, dialect.error(400, str(error)))
        else:
            answer_json(self._replica, connection, 200, _finite(self._replica.behaviour))


def _finite(behaviour: Behaviour) -> dict[str, object]:
    """JSON has no infinity: null stands for it."""
    return {name: value if math.isfinite(value) else None for name, value in behaviour.items()}
