"""Buckets in Redis or Valkey, shared by all gateways, and the keeping of one connection.

A request is one script call (`bucket.lua`). The time is the server's. A call that misses its
deadline is abandoned: by the id of the reservation a late or lost reply costs nothing, and what a
dead gateway had reserved comes back after the lease. Nothing is retried but settles, which are
idempotent too. While the circuit is open there is no connection, and calls fail at no cost; a task
in the background connects, sends the whole script once within the deadline, and closes the circuit.

A failover to a replica loses the writes that had not reached it: at most one burst too many is
admitted per bucket. A clock that steps neither refills nor blocks for longer than one burst.

The protocol is spoken here (`redis_wire.py`) rather than by redis-py for its cost in CPU per call.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
import secrets
import ssl
from collections import deque
from importlib import resources
from typing import Final

from core.errors import ConfigError
from core.metrics import Metrics
from core.tasks import spawn
from ratelimit.circuit import Circuit
from ratelimit.config import RedisConfig, Rule
from ratelimit.endpoint import parse
from ratelimit.plan import Amounts, Plan
from ratelimit.redis_reply import command, join
from ratelimit.redis_wire import Call, Wire
from ratelimit.store import Charge, Decision, StoreUnavailable

SCRIPT: Final = resources.files("ratelimit").joinpath("bucket.lua").read_bytes()
SHA: Final = hashlib.sha1(SCRIPT, usedforsecurity=False).hexdigest().encode()
BACKLOG: Final = 10_000
"""Settles kept while Redis is away; beyond that the leases must do."""
TEMPLATES: Final = 10_000
SETTLE_TRIES: Final = 5
RESEND_S: Final = 1.0
CLOSE_S: Final = 0.5
LATENCY_BUCKETS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)

# No tenant is named so: a quoted name has no exclamation mark.
PROBE: Final = Plan("!", "", [Rule(name="probe", requests_per_minute=60_000)])
_BY_HASH: Final = join((b"EVALSHA", SHA))
_BY_TEXT: Final = join((b"EVAL", SCRIPT))
_log = logging.getLogger("headrace.ratelimit")


class RedisStore:
    """A `Store` on one server. `start` waits for the first attempt to connect, not for success."""

    def __init__(self, config: RedisConfig, metrics: Metrics) -> None:
        self._config = config
        self._endpoint = parse(config.url)
        self._tls = _tls(config) if self._endpoint.tls else None
        self._circuit = Circuit(config.failures_to_open, config.retry_max_s)
        self._wire: Wire | None = None
        self._reached = False
        self._why = "not started"
        self._keeper: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        self._templates: dict[Plan, bytes] = {}
        self._backlog: deque[Call] = deque()
        self._resend_timer: asyncio.TimerHandle | None = None
        self._id_prefix = b""
        self._ids = 0
        self._failures = metrics.counter(
            "headrace_limit_store_failures_total",
            "Calls to the store of the limits that failed.",
            ("kind",),
        )
        self._state = metrics.gauge(
            "headrace_limit_store_state", "1 while the store of the limits is in use."
        )
        self._seconds = metrics.histogram(
            "headrace_limit_store_seconds", "Time until the store answered.", LATENCY_BUCKETS
        )

    def __repr__(self) -> str:
        return f"<RedisStore {self._endpoint} {'connected' if self._wire else self._why}>"

    async def start(self) -> None:
        self._id_prefix = secrets.token_hex(8).encode()
        self._keeper = spawn(self._keep_connected(), "limits-redis")
        await self._tried.wait()

    async def close(self) -> None:
        """Send what is settled, for CLOSE_S at most, and disconnect."""
        if self._resend_timer is not None:
            self._resend_timer.cancel()
        if self._wire is not None:
            self._resend()
            # Replies come in order: this one comes after those of all settles.
            await asyncio.wait([spawn(self._ping(self._wire), "limits-close")], timeout=CLOSE_S)
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if self._wire is not None:
            self._wire.drop("closed")
            self._wire = None
            self._state.set(0)
        # A dropped transport closes its socket in the next turn of the loop.
        await asyncio.sleep(0)

    def ready(self) -> str | None:
        if self._wire is not None:
            return None
        state = "circuit open" if self._reached else "never reached"
        return f"the limits' store {self._endpoint}: {state} ({self._why})"

    async def reserve(self, charge: Charge) -> Decision:
        wire = self._wire
        if wire is None:
            raise StoreUnavailable("circuit_open")
        try:
            reply = await wire.call(self._command(self._named(charge), b"r", charge.amounts))
        except BaseException as error:
            # Failed or cancelled: what may have been charged is given back.
            self.settle(charge, charge.plan.nothing)
            if isinstance(error, StoreUnavailable):
                self._failures.labels(error.kind).inc()
            raise
        return Decision(reply.pop(0) == 1, reply)

    def settle(self, charge: Charge, used: Amounts) -> None:
        call = Call(self._command(charge, b"s", used))
        if self._wire is not None:
            self._wire.submit_later(call)
        else:
            self._keep(call)

    def _named(self, charge: Charge) -> Charge:
        """With an id that no other gateway uses: 64 random bits of this one and a count."""
        self._ids += 1
        charge.id = b"%b%016x" % (self._id_prefix, self._ids)
        return charge

    def _command(self, charge: Charge, operation: bytes, amounts: Amounts) -> bytes:
        template = self._templates.get(charge.plan)
        if template is None:
            if len(self._templates) >= TEMPLATES:
                self._templates.clear()
            template = self._templates[charge.plan] = self._template(charge.plan)
        return template % (operation, charge.id, *amounts)

    def _template(self, plan: Plan) -> bytes:
        """A script call with holes for operation, id and amounts, all of fixed width."""
        tenant = f"{self._config.key_prefix}:{{{plan.tenant}}}:"
        names = ["leases", "open", *(bucket.key for bucket in plan.buckets)]
        keys = [(tenant + name).encode().replace(b"%", b"%%") for name in names]
        sizes = [len(key) - key.count(b"%%") for key in keys]
        values: list[bytes] = [b"%d" % plan.lease_us, b"0"]
        holes = b"$1\r\n%b\r\n$32\r\n%b\r\n" + join(values)
        for bucket in plan.buckets:
            holes += join((b"%d" % bucket.limit[0], b"%d" % bucket.limit[1]))
            holes += b"$16\r\n%016d\r\n"
        count = 3 + len(keys) + 4 + 3 * len(plan.buckets)
        head = b"*%d\r\n%b%b" % (count, _BY_HASH, join((b"%d" % len(keys),)))
        body = b"".join(b"$%d\r\n%b\r\n" % pair for pair in zip(sizes, keys, strict=True))
        return head + body + holes

    def _keep(self, call: Call) -> None:
        """Remember a settle that the server has not acknowledged."""
        call.tries += 1
        call.due_at, call.expired = 0.0, False
        if call.tries > SETTLE_TRIES or len(self._backlog) >= BACKLOG:
            self._failures.labels("settle_dropped").inc()
            return
        self._backlog.append(call)
        if self._wire is not None and self._resend_timer is None:
            loop = asyncio.get_running_loop()
            self._resend_timer = loop.call_later(RESEND_S, self._resend)

    def _resend(self) -> None:
        self._resend_timer = None
        if self._wire is not None:
            calls, self._backlog = self._backlog, deque()
            for call in calls:
                self._wire.submit_later(call)

    async def _ping(self, wire: Wire) -> None:
        with contextlib.suppress(StoreUnavailable):
            await wire.call(command(b"PING"))

    async def _keep_connected(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._circuit.retry_in_s(random.random()))
            try:
                wire = await self._connect()
            except StoreUnavailable as error:
                self._gave_up(error.kind)
                continue
            _log.info("limits: using %s", self._endpoint)
            self._circuit.closed(loop.time())
            self._wire, self._reached, self._why = wire, True, ""
            self._state.set(1)
            self._resend()
            self._tried.set()
            # Not awaited itself: ending this task would end it too, with the connection open.
            await asyncio.wait([wire.lost])
            self._wire = None
            self._state.set(0)
            self._circuit.opened(loop.time())
            self._gave_up(wire.lost.result())

    def _gave_up(self, kind: str) -> None:
        """One line in the log for each change, not for each attempt."""
        self._tried.set()
        if kind != self._why:
            self._why = kind
            _log.warning("limits: %s is not in use: %s", self._endpoint, kind)

    async def _connect(self) -> Wire:
        """A connection on which the script has run. Raises StoreUnavailable."""
        endpoint, loop = self._endpoint, asyncio.get_running_loop()
        wire = Wire(
            self._circuit,
            self._config.deadline_s,
            (_BY_HASH, _BY_TEXT),
            self._keep,
            self._seconds.observe_many,
        )
        connected = False
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                if endpoint.path:
                    await loop.create_unix_connection(lambda: wire, endpoint.path)
                else:
                    await loop.create_connection(
                        lambda: wire, endpoint.host, endpoint.port, ssl=self._tls
                    )
                await self._greet(wire)
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

    async def _greet(self, wire: Wire) -> None:
        """Log in, load the script, and reserve and settle on a bucket of our own."""
        endpoint, config = self._endpoint, self._config
        commands = []
        if config.password is not None:
            login = [config.password.reveal().encode()]
            if endpoint.username:
                login.insert(0, endpoint.username.encode())
            commands.append(command(b"AUTH", *login))
        if endpoint.db:
            commands.append(command(b"SELECT", b"%d" % endpoint.db))
        commands.append(command(b"SCRIPT", b"LOAD", SCRIPT))
        probe = self._named(Charge(PROBE, PROBE.amounts(0)))
        commands.append(self._command(probe, b"r", probe.amounts))
        commands.append(self._command(probe, b"s", probe.amounts))
        await asyncio.gather(*[wire.call(each) for each in commands])


def _tls(config: RedisConfig) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=config.ca)
    except OSError as error:
        raise ConfigError(f"limits: cannot read the certificates {config.ca}: {error}") from error
