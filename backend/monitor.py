"""Asks the replicas how they are: health probes and load scrapes, off the path of requests.

Each question has its own short connection: a probe on a kept one would not notice that the
listener is gone. Neither redirects nor cookies nor proxies from the environment are followed.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from typing import Protocol

import aiohttp

from backend.config import ReplicaConfig, ScrapeConfig, UpstreamConfig
from backend.engines.vllm import VLLM
from backend.health import Probe
from backend.load import parse_load
from core.clock import Clock
from core.replica import Load
from core.tasks import spawn

MAX_METRICS_BYTES = 4 * 1024 * 1024
JITTER = 0.2
"""Share of an interval by which it varies, so that many gateways do not ask in step."""


class Listener(Protocol):
    """Who is told the results."""

    def probed(self, probe: Probe) -> float:
        """Returns the seconds until the next probe."""

    def scraped(self, load: Load) -> None: ...


class _Asker:
    """An HTTP client for one replica."""

    def __init__(
        self, config: ReplicaConfig, context: ssl.SSLContext | None, key: str | None
    ) -> None:
        address = config.address
        self.id = config.replica.id
        self._origin = address.origin
        self._server_name = config.tls.server_name if config.tls else None
        connector: aiohttp.BaseConnector
        if address.path:
            connector = aiohttp.UnixConnector(address.path, force_close=True)
        else:
            connector = aiohttp.TCPConnector(ssl=context or True, force_close=True)
        headers = {"accept-encoding": "identity"}
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
            trust_env=False,
        )

    def __repr__(self) -> str:
        return f"<_Asker {self.id}>"

    async def probe(self, path: str, timeout_s: float) -> Probe:
        try:
            status, _ = await self._get(path, timeout_s, max_bytes=0)
        except TimeoutError:
            return Probe.SLOW
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, (ConnectionRefusedError, FileNotFoundError))
            return Probe.REFUSED if refused else Probe.BAD
        except (aiohttp.ClientError, OSError):
            return Probe.BAD
        return Probe.GOOD if 200 <= status < 300 else Probe.BAD

    async def scrape(self, config: ScrapeConfig) -> bytes | None:
        """The text of its metrics; None when there is none to be had."""
        try:
            status, text = await self._get(config.path, config.timeout_s, MAX_METRICS_BYTES)
        except (aiohttp.ClientError, OSError):  # TimeoutError is an OSError
            return None
        return text if status == 200 else None

    async def close(self) -> None:
        await self._session.close()

    async def _get(self, path: str, timeout_s: float, max_bytes: int) -> tuple[int, bytes]:
        """Status and body; a longer body is cut, which the reader takes for what it is: less."""
        async with self._session.get(
            self._origin + path,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            allow_redirects=False,
            server_hostname=self._server_name,
        ) as response:
            pieces: list[bytes] = []
            size = 0
            while size < max_bytes and (piece := await response.content.read(max_bytes - size)):
                pieces.append(piece)
                size += len(piece)
            return response.status, b"".join(pieces)


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
        self._replica = replica
        self._config = config
        self._listener = listener
        self._context = context
        self._clock = clock
        self._key = replica.api_key.reveal() if replica.api_key is not None else None
        self._asker: _Asker | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"<Monitor of {self._replica.replica.id}, {len(self._tasks)} tasks>"

    @property
    def started(self) -> bool:
        return self._asker is not None

    def start(self) -> None:
        """The first questions go out at once."""
        if self.started:
            return
        asker = self._asker = _Asker(self._replica, self._context, self._key)
        if self._config.active_health:
            self._tasks.append(spawn(self._probe(asker), f"probe {asker.id}"))
        scrape = self._config.metrics
        if isinstance(scrape, ScrapeConfig):
            self._tasks.append(spawn(self._scrape(asker, scrape), f"scrape {asker.id}"))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks.clear()
        if self._asker is not None:
            await self._asker.close()
            self._asker = None

    async def _probe(self, asker: _Asker) -> None:
        health = self._config.health
        while True:
            probe = await asker.probe(health.path, health.timeout_s)
            await asyncio.sleep(_jittered(self._listener.probed(probe)))

    async def _scrape(self, asker: _Asker, config: ScrapeConfig) -> None:
        while True:
            text = await asker.scrape(config)
            if text is not None and (load := parse_load(text, VLLM, self._clock())) is not None:
                self._listener.scraped(load)
            await asyncio.sleep(_jittered(config.interval_s))


def _jittered(seconds: float) -> float:
    return seconds * (1 + JITTER * (2 * random.random() - 1))
