"""The keeping of one connection to one server of the limits' store.

While the circuit is open there is no connection; a task in the background connects, has the server
run the script once within the deadline, and closes the circuit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from core.errors import ConfigError
from core.tasks import spawn
from ratelimit.circuit import Circuit
from ratelimit.config import RedisConfig
from ratelimit.endpoint import Endpoint
from ratelimit.redis_command import BY_HASH, BY_TEXT, SCRIPT
from ratelimit.redis_reply import command
from ratelimit.redis_wire import Call, Wire
from ratelimit.store import StoreUnavailable

CLOSE_S: Final = 0.5
_log = logging.getLogger("headrace.ratelimit")


class Hooks(NamedTuple):
    """Whom a link tells: of kept calls without a reply, of seconds that calls took, of keys that
    are elsewhere, and that it has got or lost its connection. `probe` makes calls that a server
    must be able to answer before it is used."""

    unsettled: Callable[[Call], None]
    observe: Callable[[float, int], None]
    redirect: Callable[[Call, str], bool]
    changed: Callable[[], None]
    probe: Callable[[], list[bytes]]


class Link:
    """`name` is for people; `find` says where the server is now (it may raise StoreUnavailable).

    `start` waits for the first attempt to connect, not for success.
    """

    def __init__(
        self,
        name: str,
        config: RedisConfig,
        find: Callable[[], Awaitable[Endpoint]],
        tls: ssl.SSLContext | None,
        hooks: Hooks,
    ) -> None:
        self._name = name
        self._config = config
        self._find = find
        self._tls = tls
        self._hooks = hooks
        self._circuit = Circuit(config.failures_to_open, config.retry_max_s)
        self._reached = False
        self._why = "not started"
        self._keeper: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        self.wire: Wire | None = None

    def __repr__(self) -> str:
        return f"<Link {self._name} {'connected' if self.wire else self._why}>"

    def wire_of(self, slot: int) -> Wire | None:
        """One server has the keys of all slots."""
        return self.wire

    def ready(self) -> str | None:
        if self.wire is not None:
            return None
        state = "circuit open" if self._reached else "never reached"
        return f"{self._name}: {state} ({self._why})"

    async def start(self) -> None:
        self.begin()
        await self.tried()

    async def tried(self) -> None:
        """Until connecting has been tried once."""
        await self._tried.wait()

    def begin(self) -> None:
        """As `start`, without waiting."""
        self._keeper = spawn(self._keep_connected(), "limits-redis")

    async def close(self) -> None:
        """Wait until what was sent has arrived, for CLOSE_S at most, and disconnect."""
        if self.wire is not None:
            # Replies come in order: this one comes after those of all settles.
            await asyncio.wait([spawn(_ping(self.wire), "limits-close")], timeout=CLOSE_S)
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if self.wire is not None:
            self.wire.drop("closed")
            self.wire = None
        self._hooks.changed()
        # A dropped transport closes its socket in the next turn of the loop.
        await asyncio.sleep(0)

    async def _keep_connected(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._circuit.retry_in_s(random.random()))
            try:
                wire = await self._connect()
            except StoreUnavailable as error:
                self._gave_up(error.kind)
                continue
            _log.info("limits: using %s", self._name)
            self._circuit.closed(loop.time())
            self.wire, self._reached, self._why = wire, True, ""
            self._hooks.changed()
            self._tried.set()
            # Not awaited itself: ending this task would end it too, with the connection open.
            await asyncio.wait([wire.lost])
            self.wire = None
            self._circuit.opened(loop.time())
            self._gave_up(wire.lost.result())

    def _gave_up(self, kind: str) -> None:
        """One line in the log for each change, not for each attempt."""
        self._tried.set()
        if kind != self._why:
            self._why = kind
            _log.warning("limits: %s is not in use: %s", self._name, kind)
        self._hooks.changed()

    async def _connect(self) -> Wire:
        """A connection on which the script has run. Raises StoreUnavailable."""
        wire = Wire(
            self._circuit,
            self._config.deadline_s,
            (BY_HASH, BY_TEXT),
            self._hooks.unsettled,
            self._hooks.observe,
            redirect=self._hooks.redirect,
        )
        connected = False
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                endpoint = await self._find()
                await self._open(wire, endpoint)
                commands = greeting(self._config, endpoint) + self._hooks.probe()
                await asyncio.gather(*[wire.call(each) for each in commands])
            connected = True
        except TimeoutError:
            raise StoreUnavailable("timeout") from None
        except ssl.SSLError as error:
            raise StoreUnavailable("tls") from error
        except OSError as error:
            kind = "refused" if isinstance(error, ConnectionRefusedError) else "unreachable"
            raise StoreUnavailable(kind) from error
        except ConfigError as error:
            raise StoreUnavailable("auth") from error
        finally:
            if not connected:
                wire.drop("closed")
        return wire

    async def _open(self, wire: Wire, endpoint: Endpoint) -> None:
        loop = asyncio.get_running_loop()
        if endpoint.path:
            await loop.create_unix_connection(lambda: wire, endpoint.path)
        else:
            await loop.create_connection(lambda: wire, endpoint.host, endpoint.port, ssl=self._tls)


def greeting(config: RedisConfig, endpoint: Endpoint) -> list[bytes]:
    """Log in and load the script. Raises ConfigError when the password cannot be read."""
    commands = []
    if config.password is not None:
        login = [config.password.reveal().encode()]
        if endpoint.username:
            login.insert(0, endpoint.username.encode())
        commands.append(command(b"AUTH", *login))
    if endpoint.db:
        commands.append(command(b"SELECT", b"%d" % endpoint.db))
    return [*commands, command(b"SCRIPT", b"LOAD", SCRIPT)]


async def _ping(wire: Wire) -> None:
    with contextlib.suppress(StoreUnavailable):
        await wire.call(command(b"PING"))
