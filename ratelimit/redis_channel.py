"""A channel (PUBLISH, SUBSCRIBE) in the limits' Redis, off the path of requests. Performs.

Messages are lost while there is no connection, which is told. Whoever uses it publishes at least
once a second: as that comes back, silence means that the connection is dead, though it looks well.
In a cluster any node will do, since it passes messages on to all others.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from core.errors import ConfigError
from core.tasks import spawn
from ratelimit.config import RedisConfig
from ratelimit.endpoint import Endpoint, parse, parse_host
from ratelimit.redis_cluster import primary_of
from ratelimit.store import StoreUnavailable

SILENT_S: Final = 3.0
_CALL_S: Final = 1.0
_LOOK_S: Final = 0.25
_log = logging.getLogger("headrace.ratelimit")


class RedisChannel:
    """`heard` gets what was published, by this process too; `changed` is told whether the channel
    can be used (see `connected`)."""

    def __init__(
        self,
        config: RedisConfig,
        name: str,
        heard: Callable[[bytes], None],
        changed: Callable[[bool], None],
    ) -> None:
        self._config = config
        self._endpoint = parse(config.url)
        self._channel = f"{config.key_prefix}:{name}"
        self._heard = heard
        self._changed = changed
        self._tries = 0
        self._why: str | None = "not started"
        self._client: Any = None
        self._keeper: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<RedisChannel {self._channel} at {self._endpoint}: {self._why or 'connected'}>"

    @property
    def connected(self) -> bool:
        return self._client is not None

    def start(self) -> None:
        self._keeper = spawn(self._keep(), "redis-channel")

    async def close(self, last: bytes | None = None) -> None:
        """Publish `last`, if that is possible, and disconnect."""
        if last is not None:
            await self.publish(last)
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    async def publish(self, data: bytes) -> bool:
        """False: nobody may have heard it."""
        client = self._client
        if client is None:
            return False
        try:
            await client.publish(self._channel, data)
        except (RedisError, OSError, TimeoutError) as error:
            self._gave_up(error)
            return False
        return True

    async def _keep(self) -> None:
        while True:
            try:
                await self._follow()
            except (RedisError, OSError, TimeoutError, StoreUnavailable, ConfigError) as error:
                self._gave_up(error)
            self._tries += 1
            await asyncio.sleep(self._config.retry_max_s * random.uniform(0.2, 1.0))

    async def _follow(self) -> None:
        """Connect, and hear messages until that fails or all is silent."""
        client = await self._connect()
        try:
            async with client.pubsub(ignore_subscribe_messages=True) as subscribed:
                await subscribed.subscribe(self._channel)
                await client.ping()
                if self._why is not None:
                    _log.info("hosts: using the channel %s at %s", self._channel, self._endpoint)
                self._client, self._why = client, None
                self._changed(True)
                silent_at = self._now() + SILENT_S
                while self._client is client:
                    left_s = silent_at - self._now()
                    if left_s <= 0:
                        raise TimeoutError("silent")
                    message = await subscribed.get_message(timeout=min(left_s, _LOOK_S))
                    if message is not None and message["type"] == "message":
                        silent_at = self._now() + SILENT_S
                        self._heard(message["data"])
        finally:
            self._client = None
            self._changed(False)
            with suppress(RedisError, OSError):
                await client.aclose()

    async def _connect(self) -> Any:
        config, endpoint = self._config, await self._place()
        timeout_s = config.connect_timeout_s
        options: dict[str, Any] = {
            "socket_timeout": _CALL_S,
            "socket_connect_timeout": timeout_s,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
        }
        if config.password is not None:
            options["username"] = endpoint.username or None
            options["password"] = config.password.reveal()
        if endpoint.path:
            return Redis(unix_socket_path=endpoint.path, **options)
        if endpoint.tls:
            options |= {"ssl": True, "ssl_ca_certs": config.ca}
        return Redis(host=endpoint.host, port=endpoint.port, **options)

    async def _place(self) -> Endpoint:
        """Of a cluster each node in its turn."""
        config, named = self._config, self._endpoint
        if config.sentinels:
            return await primary_of(config)
        if config.cluster:
            nodes = [(named.host, named.port), *map(parse_host, config.nodes)]
            host, port = nodes[self._tries % len(nodes)]
            return Endpoint(host, port, "", named.tls, named.username, 0)
        return named

    def _gave_up(self, error: Exception) -> None:
        """One line in the log for each change, not for each attempt."""
        self._client = None
        why = str(error) or type(error).__name__
        if self._why is None or why != self._why:
            _log.warning("hosts: the channel %s is not in use: %s", self._endpoint, why)
        self._why = why

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
