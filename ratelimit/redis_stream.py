"""Appends to a stream in the limits' Redis, on a connection of its own.

What is appended between two flushes is one write. Each entry waits, or is sent again, until Redis
has acknowledged it, so one may be there twice: a connection that breaks does not tell what arrived.
"""

from __future__ import annotations

import logging
import ssl
from binascii import crc_hqx
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from ratelimit.config import RedisConfig
from ratelimit.endpoint import Endpoint, parse
from ratelimit.redis_cluster import Cluster, primary_of
from ratelimit.redis_command import SLOTS
from ratelimit.redis_link import Hooks, Link
from ratelimit.redis_reply import command, join
from ratelimit.redis_store import Routes, tls_context
from ratelimit.redis_wire import Call

BUFFER_BYTES: Final = 8 * 1024 * 1024
"""So much is kept while Redis is away: some 20,000 records, in each worker."""
DEADLINE_S: Final = 1.0
"""Nobody waits for these replies. Without one for so long, the connection is given up and what was
sent is sent again."""
FIELD: Final = b"usage"
_log = logging.getLogger("headrace.ratelimit")


class RedisStream:
    """Entries of one field, `usage`. About the newest `max_entries` are kept. `dropped` is called
    with the number of entries that are lost."""

    def __init__(
        self, config: RedisConfig, name: str, max_entries: int, dropped: Callable[[int], None]
    ) -> None:
        self._config = msgspec.structs.replace(config, deadline_s=DEADLINE_S, failures_to_open=1)
        self._endpoint = parse(config.url)
        self._tls: ssl.SSLContext | None = tls_context(config) if self._endpoint.tls else None
        self._name = name
        self._slot = slot_of(name)
        parts = (b"XADD", name.encode(), b"MAXLEN", b"~", b"%d" % max_entries, b"*", FIELD)
        self._head = b"*%d\r\n%b" % (len(parts) + 1, join(parts))
        self._dropped = dropped
        self._waiting: deque[bytes] = deque()
        self._closed = False
        self.waiting_bytes = 0
        self._routes: Routes = self._make_routes()

    def __repr__(self) -> str:
        return f"<RedisStream {self._name}, {self.waiting_bytes} bytes wait, {self._routes!r}>"

    def _make_routes(self) -> Routes:
        config, endpoint = self._config, self._endpoint

        async def fixed() -> Endpoint:
            return endpoint

        async def asked() -> Endpoint:
            return await primary_of(config)

        if config.cluster:
            return Cluster(config, self._make_node)
        find = asked if config.sentinels else fixed
        # A key of another type is found out at once, and not entry by entry.
        hooks = self._hooks(lambda: [command(b"XLEN", self._name.encode())])
        return Link(f"the stream {self._name} at {endpoint}", config, find, self._tls, hooks)

    def _make_node(self, endpoint: Endpoint) -> Link:
        async def fixed() -> Endpoint:
            return endpoint

        assert isinstance(self._routes, Cluster)
        hooks = self._hooks(list)._replace(redirect=self._routes.redirect)
        name = f"the stream {self._name} at {endpoint}"
        return Link(name, self._config, fixed, self._tls, hooks)

    def _hooks(self, probe: Any) -> Hooks:
        return Hooks(self._unsettled, _unobserved, _nowhere, self.flush, probe)

    async def start(self) -> None:
        """Waits for the first attempt to connect, not for success."""
        await self._routes.start()

    async def stop(self) -> None:
        """Send what waits, if Redis is there, and disconnect."""
        self.flush()
        self._closed = True
        await self._routes.close()

    def close(self) -> None:
        """Give up what could not be sent. Nothing can be appended any more."""
        self._closed = True
        if lost := len(self._waiting):
            _log.warning("usage: %d records were lost: %s did not take them", lost, self._endpoint)
            self._dropped(lost)
            self._waiting.clear()
            self.waiting_bytes = 0

    def put(self, line: bytes) -> None:
        """Append one line, without its newline, at the next flush."""
        line = line.removesuffix(b"\n")
        self._keep(self._head + b"$%d\r\n%b\r\n" % (len(line), line))

    def flush(self) -> None:
        """Send what waits, in one write, if Redis is there."""
        wire = self._routes.wire_of(self._slot)
        if wire is None or self._closed:
            return
        waiting, self._waiting = self._waiting, deque()
        self.waiting_bytes = 0
        for each in waiting:
            wire.submit(Call(each, self._slot, kept=True))

    def _unsettled(self, call: Call) -> None:
        """Redis did not acknowledge it."""
        self._keep(call.command)

    def _keep(self, entry: bytes) -> None:
        if self.waiting_bytes + len(entry) > BUFFER_BYTES:
            self._dropped(1)
            return
        self._waiting.append(entry)
        self.waiting_bytes += len(entry)


def slot_of(key: str) -> int:
    """Its place in a cluster: the part in braces counts, where there is one."""
    inside = key.partition("{")[2].partition("}")
    counted = inside[0] if inside[1] and inside[0] else key
    return crc_hqx(counted.encode(), 0) % SLOTS


def _unobserved(seconds: float, calls: int) -> None:
    """Nobody waits for these replies."""


def _nowhere(call: Call, error: str) -> bool:
    return False
