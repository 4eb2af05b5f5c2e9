"""Asks the replicas how they are: health probes and load scrapes, off the path of requests."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from typing import Protocol

from backend.asker import Asker
from backend.config import ReplicaConfig, ScrapeConfig, UpstreamConfig
from backend.dialer import Dialer
from backend.engines.dialect import EngineKind
from backend.engines.known import DIALECTS
from backend.health import Probe
from backend.load import parse_load
from core.clock import Clock
from core.replica import Load
from core.tasks import spawn

MAX_METRICS_BYTES = 4 * 1024 * 1024
JITTER = 0.2
"""Share of an interval by which it varies, so that many gateways do not ask in step."""

_log = logging.getLogger("headrace.backend")


class Listener(Protocol):
    """Who is told the results."""

    def probed(self, probe: Probe) -> float:
        """Returns the seconds until the next probe."""

    def scraped(self, load: Load) -> None: ...


class Monitor:
    """The tasks that probe and scrape one replica. Raises ConfigError when its key cannot be
    read."""

    def __init__(
        self,
        replica: ReplicaConfig,
        config: UpstreamConfig,
        listener: Listener,
        context: ssl.SSLContext | None,
        clock: Clock,
    ) -> None:
        self._asker = Asker(Dialer(replica, config, context))
        self._config = config
        self._engine = replica.engine
        self._dialect = replica.dialect
        self._rank = replica.data_parallel_rank
        self._listener = listener
        self._clock = clock
        self._started = False
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"<Monitor of {self._asker.id}, {len(self._tasks)} tasks>"

    @property
    def started(self) -> bool:
        return self._started

    def start(self) -> None:
        """The first questions go out at once."""
        if self._started:
            return
        self._started = True
        asker = self._asker
        if self._config.active_health:
            self._tasks.append(spawn(self._probe(asker), f"probe {asker.id}"))
        scrape = self._config.metrics
        if isinstance(scrape, ScrapeConfig) and self._dialect.load is not None:
            self._tasks.append(spawn(self._scrape(asker, scrape), f"scrape {asker.id}"))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks.clear()
        self._started = False

    async def _probe(self, asker: Asker) -> None:
        health, dialect = self._config.health, self._dialect
        path = dialect.health_path or health.path
        while True:
            probe = await asker.probe(path, health.timeout_s, dialect.healthy)
            pause_s = max(self._listener.probed(probe), dialect.probe_s)
            await asyncio.sleep(_jittered(pause_s))

    async def _scrape(self, asker: Asker, config: ScrapeConfig) -> None:
        names, doubted = self._dialect.load, False
        assert names is not None, "it would not have been started"
        while True:
            text = await asker.fetch(config.path, config.timeout_s, MAX_METRICS_BYTES)
            if text is not None:
                load = parse_load(text, names, self._clock(), self._rank)
                if load is not None:
                    self._listener.scraped(load)
                elif not doubted and (other := _other_engine(text, self._engine)):
                    doubted = True
                    _log.warning(
                        "replica %s: its metrics are those of %s; give it `engine: %s`",
                        asker.id,
                        other,
                        other,
                    )
            await asyncio.sleep(_jittered(config.interval_s))


def _other_engine(text: bytes, engine: EngineKind) -> EngineKind | None:
    """Whose metrics these are, if not those of `engine`."""
    for kind, dialect in DIALECTS.items():
        if kind != engine and dialect.load is not None and parse_load(text, dialect.load, 0.0):
            return kind
    return None


def _jittered(seconds: float) -> float:
    return seconds * (1 + JITTER * (2 * random.random() - 1))
