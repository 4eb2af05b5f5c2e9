"""Asks the replicas how they are: health probes and load scrapes, off the path of requests. Of
several workers whoever is due first asks, and all take the answer."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import ssl
from typing import Any, Protocol

from backend.asker import Asker
from backend.asking import Asking
from backend.config import ReplicaConfig, ScrapeConfig, UpstreamConfig
from backend.dialer import Dialer
from backend.engines.dialect import EngineKind
from backend.engines.known import DIALECTS
from backend.health import Probe
from backend.load import parse_load
from core.clock import Clock
from core.replica import Load
from core.shared_probes import ProbeCell
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


_PROBES = tuple(Probe)


class Monitor:
    """The tasks that probe and scrape one replica. `cell`: what other workers have heard, and are
    told. Raises ConfigError when its key cannot be read."""

    def __init__(
        self,
        replica: ReplicaConfig,
        config: UpstreamConfig,
        listener: Listener,
        context: ssl.SSLContext | None,
        clock: Clock,
        *,
        cell: ProbeCell | None = None,
    ) -> None:
        self._cell = cell
        self._asker = Asker(Dialer(replica, config, context))
        self._config = config
        self._engine = replica.engine
        self._dialect = replica.dialect
        self._rank = replica.data_parallel_rank
        self._listener = listener
        self._clock = clock
        self._started = False
        self._doubted = False
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
        health, dialect, cell = self._config.health, self._dialect, self._cell
        path = dialect.health_path or health.path
        asking = _probing(cell, health.timeout_s, self._clock())
        while True:
            now = self._clock()
            probe = asking.news()
            if probe is None and asking.my_turn(now):
                if cell is not None:
                    cell.begin_probe(now)
                probe = await asker.probe(path, health.timeout_s, dialect.healthy)
                now = self._clock()
                asking.known(now)
                if cell is not None:
                    cell.put_probe(_PROBES.index(probe), now)
            if probe is not None:
                asking.wait(now, _jittered(max(self._listener.probed(probe), dialect.probe_s)))
            await asyncio.sleep(asking.pause(now))

    async def _scrape(self, asker: Asker, config: ScrapeConfig) -> None:
        cell = self._cell
        asking = _scraping(cell, config.timeout_s, self._clock())
        while True:
            now = self._clock()
            load = asking.news()
            if load is not None:
                asking.wait(now, _jittered(config.interval_s))
            elif asking.my_turn(now):
                if cell is not None:
                    cell.begin_scrape(now)
                load = await self._read(asker, config)
                now = self._clock()
                asking.known(now)
                if cell is not None and load is not None:
                    cell.put_load(load)
                asking.wait(now, _jittered(config.interval_s))
            if load is not None:
                self._listener.scraped(load)
            await asyncio.sleep(asking.pause(now))

    async def _read(self, asker: Asker, config: ScrapeConfig) -> Load | None:
        names = self._dialect.load
        assert names is not None, "it would not have been started"
        text = await asker.fetch(config.path, config.timeout_s, MAX_METRICS_BYTES)
        if text is None:
            return None
        load = parse_load(text, names, self._clock(), self._rank)
        if load is None and not self._doubted and (other := _other_engine(text, self._engine)):
            self._doubted = True
            _log.warning(
                "replica %s: its metrics are those of %s; give it `engine: %s`",
                asker.id,
                other,
                other,
            )
        return load


def _probing(cell: ProbeCell | None, timeout_s: float, now: float) -> Asking[Probe]:
    if cell is None:
        return _alone(timeout_s, now)

    def heard() -> tuple[float, Probe]:
        at, result = cell.probed()
        return at, _PROBES[result]

    return Asking(heard, cell.probe_begun_at, cell.doubted_at, timeout_s, now)


def _scraping(cell: ProbeCell | None, timeout_s: float, now: float) -> Asking[Load]:
    if cell is None:
        return _alone(timeout_s, now)

    def heard() -> tuple[float, Load] | None:
        load = cell.load()
        return None if load is None else (load.observed_at, load)

    return Asking(heard, cell.scrape_begun_at, _never, timeout_s, now)


def _alone(timeout_s: float, now: float) -> Asking[Any]:
    return Asking(_nothing, _never, _never, timeout_s, now, look_s=math.inf)


def _nothing() -> None:
    return None


def _never() -> float:
    return 0.0


def _other_engine(text: bytes, engine: EngineKind) -> EngineKind | None:
    """Whose metrics these are, if not those of `engine`."""
    for kind, dialect in DIALECTS.items():
        if kind != engine and dialect.load is not None and parse_load(text, dialect.load, 0.0):
            return kind
    return None


def _jittered(seconds: float) -> float:
    return seconds * (1 + JITTER * (2 * random.random() - 1))
