"""Which server has which keys: a cluster's map of slots, and a Sentinel's word for who is primary.

Both are asked in the background, through redis-py and without its retries. Calls on the path of a
request go over `redis_wire.py` to the server that the map names; a server that has handed a slot
on says so (MOVED, ASK), and the call follows within its deadline, once the other is connected.
While only a part of a tenant's keys has moved, neither server can answer (TRYAGAIN), and its
requests go by `on_store_failure`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from core.errors import ConfigError
from core.tasks import spawn
from ratelimit.config import RedisConfig
from ratelimit.endpoint import Endpoint, parse, parse_host
from ratelimit.redis_command import SLOTS
from ratelimit.redis_link import Link
from ratelimit.redis_reply import command, place_in
from ratelimit.redis_wire import Call, Wire
from ratelimit.store import StoreUnavailable

REFRESH_S: Final = 30.0
RETRY_S: Final = 0.5
"""Between looks at the map while a server is missing."""
ASKING: Final = command(b"ASKING")
_log = logging.getLogger("headrace.ratelimit")


def _options(config: RedisConfig, endpoint: Endpoint, timeout_s: float) -> dict[str, Any]:
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    if endpoint.tls:
        options |= {"ssl": True, "ssl_ca_certs": config.ca}
    return options


def _login(config: RedisConfig, endpoint: Endpoint) -> dict[str, Any]:
    if config.password is None:
        return {}
    return {"username": endpoint.username or None, "password": config.password.reveal()}


async def primary_of(config: RedisConfig) -> Endpoint:
    """Where the server that the Sentinels call by the host of `url` is. Raises StoreUnavailable."""
    named = parse(config.url)
    # One that does not answer must leave time for the others, and for the server itself.
    options = _options(config, named, config.connect_timeout_s / (len(config.sentinels) + 1))
    if config.sentinel_password is not None:
        options["password"] = config.sentinel_password.reveal()
    hosts = [parse_host(each) for each in config.sentinels]
    asked = Sentinel(hosts, sentinel_kwargs=options)  # type: ignore[no-untyped-call]
    try:
        host, port = await asked.discover_master(named.host)
    except (RedisError, OSError) as error:
        raise StoreUnavailable("sentinel") from error
    finally:
        for client in asked.sentinels:
            await client.aclose()
    return replace(named, host=str(host), port=int(port))


class Cluster:
    """The links to all primaries. `make_link` makes one that is not started."""

    def __init__(self, config: RedisConfig, make_link: Callable[[Endpoint], Link]) -> None:
        self._config = config
        self._endpoint = parse(config.url)
        self._make_link = make_link
        self._seeds = {(self._endpoint.host, self._endpoint.port), *map(parse_host, config.nodes)}
        self._links: dict[tuple[str, int], Link] = {}
        self._slots: list[Link | None] = [None] * SLOTS
        self._stale = asyncio.Event()
        self._looked = asyncio.Event()
        self._why = "not started"
        self._keeper: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Cluster {list(self._links.values())}>"

    def wire_of(self, slot: int) -> Wire | None:
        link = self._slots[slot]
        return link.wire if link is not None else None

    def ready(self) -> str | None:
        reasons = [reason for link in self._links.values() if (reason := link.ready()) is not None]
        if not self._links or None in self._slots:
            reasons.append(f"the cluster {self._endpoint}: {self._why or 'slots are not served'}")
        return "; ".join(reasons) or None

    async def start(self) -> None:
        self._keeper = spawn(self._keep_map(), "limits-cluster")
        await self._looked.wait()

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        for link in self._links.values():
            await link.close()

    def redirect(self, call: Call, error: str) -> bool:
        """Send a call where the keys are now, if that server is connected."""
        place = place_in(error)
        if place is None or call.tries > 2:
            return False
        slot, host, port = place
        link = self._link((host or self._endpoint.host, port))
        if error.startswith("MOVED"):
            self._slots[slot % SLOTS] = link
            self._stale.set()
        if link.wire is None:
            return False
        call.tries += 1
        if error.startswith("ASK"):
            link.wire.submit(Call(ASKING))
        link.wire.submit(call)
        return True

    def _link(self, address: tuple[str, int]) -> Link:
        link = self._links.get(address)
        if link is None:
            host, port = address
            link = self._links[address] = self._make_link(
                replace(self._endpoint, host=host, port=port)
            )
            link.begin()
        return link

    async def _keep_map(self) -> None:
        first = True
        while True:
            self._stale.clear()
            try:
                await self._refresh()
                if first:
                    await asyncio.gather(*[link.tried() for link in self._links.values()])
                    first = False
                self._say("")
            except StoreUnavailable as error:
                self._say(error.kind)
            self._looked.set()
            await asyncio.sleep(RETRY_S)
            whole = self.ready() is None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stale.wait(), REFRESH_S if whole else RETRY_S)

    def _say(self, why: str) -> None:
        if why != self._why and why:
            _log.warning("limits: the cluster's map cannot be read: %s", why)
        self._why = why

    async def _refresh(self) -> None:
        """Ask the first node that answers, those in use before those of the configuration."""
        give_up_at = time.monotonic() + 2 * self._config.connect_timeout_s
        kind = "timeout"
        for address in dict.fromkeys([*self._connected(), *self._links, *sorted(self._seeds)]):
            if time.monotonic() > give_up_at:
                break
            try:
                rows = await self._ask(*address)
            except StoreUnavailable as error:
                kind = error.kind
                continue
            await self._use(rows, address[0])
            return
        raise StoreUnavailable(kind)

    def _connected(self) -> list[tuple[str, int]]:
        return [address for address, link in self._links.items() if link.wire is not None]

    async def _ask(self, host: str, port: int) -> list[list[Any]]:
        try:
            options = _options(self._config, self._endpoint, self._config.connect_timeout_s)
            login = _login(self._config, self._endpoint)
            async with Redis(host=host, port=port, **options, **login) as client:
                rows = await client.cluster("SLOTS")
        except (RedisError, OSError) as error:
            raise StoreUnavailable("cluster_map") from error
        except ConfigError as error:
            raise StoreUnavailable("auth") from error
        if not isinstance(rows, list) or not rows:
            raise StoreUnavailable("cluster_map")
        return rows

    async def _use(self, rows: list[list[Any]], asked: str) -> None:
        """Each row: first slot, last slot, the primary (host, port, ...), its replicas."""
        slots: list[Link | None] = [None] * SLOTS
        kept = set()
        for first, last, primary, *_ in rows:
            host = primary[0].decode() if isinstance(primary[0], bytes) else primary[0]
            address = (host or asked, int(primary[1]))
            kept.add(address)
            link = self._link(address)
            for slot in range(int(first), int(last) + 1):
                slots[slot] = link
        self._slots = slots
        for address in [address for address in self._links if address not in kept]:
            await self._links.pop(address).close()
