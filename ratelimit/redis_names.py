"""Names with an expiry in the limits' Redis, for gateways to follow and operators to change.

A sorted set, name by the Unix second until which it is listed, and a number that counts changes.
It blocks: for a thread, or for a command that ends.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Final

from redis.exceptions import RedisError

from ratelimit.config import RedisConfig
from ratelimit.redis_inspect import CannotAsk, connect

MOST: Final = 10_000


class RedisNames:
    """The list `name`. One connection is kept. Whatever fails raises CannotAsk."""

    def __init__(self, config: RedisConfig, name: str) -> None:
        self._config = config
        # In braces: both keys are on one node of a cluster.
        self._names = f"{config.key_prefix}:{{{name}}}:names"
        self._version = f"{config.key_prefix}:{{{name}}}:version"
        self._client: Any = None

    def __repr__(self) -> str:
        return f"<RedisNames {self._names}>"

    def read(self, version: int | None) -> tuple[int, frozenset[str]] | None:
        """The number of the latest change, and what is listed (the MOST that stay longest); None
        when that is `version`, or nothing was ever listed."""
        try:
            client = self._connected()
            found = client.get(self._version)
            if found is None or int(found) == version:
                return None
            names = client.zrange(
                self._names, "+inf", int(time.time()), byscore=True, desc=True, offset=0, num=MOST
            )
        except (RedisError, OSError, ValueError) as error:
            self.close()
            raise CannotAsk(f"{type(error).__name__}: {error}") from error
        return int(found), frozenset(name.decode("utf-8", "replace") for name in names)

    def add(self, name: str, for_s: float) -> None:
        """List `name` for so many seconds."""
        self._change("zadd", {name: time.time() + for_s})

    def remove(self, name: str) -> None:
        self._change("zrem", name)

    def _change(self, command: str, argument: object) -> None:
        try:
            pipeline = self._connected().pipeline(transaction=True)
            pipeline.zremrangebyscore(self._names, "-inf", int(time.time()))
            getattr(pipeline, command)(self._names, argument)
            pipeline.incr(self._version)
            pipeline.execute()
        except (RedisError, OSError) as error:
            self.close()
            raise CannotAsk(f"{type(error).__name__}: {error}") from error

    def _connected(self) -> Any:
        if self._client is None:
            self._client = connect(self._config)
        return self._client

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(RedisError, OSError):
                client.close()
