"""Buckets in Redis or Valkey, shared by all gateways.

A request is one script call (`bucket.lua`). The time is the server's. A call that misses its
deadline is abandoned: by the id of the reservation a late or lost reply costs nothing, and what a
dead gateway had reserved comes back after the lease. Nothing is retried but settles, which are
idempotent too. While the circuit of a server is open, calls to it fail at no cost.

A failover to a replica loses the writes that had not reached it: at most one burst too many is
admitted per bucket. A clock that steps neither refills nor blocks for longer than one burst.

The protocol is spoken here (`redis_wire.py`) rather than by redis-py for its cost in CPU per call.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

from core.errors import ConfigError
from core.metrics import Metrics
from core.principal import Principal
from ratelimit.config import RedisConfig, Rule
from ratelimit.endpoint import Endpoint, parse
from ratelimit.plan import FREE, Amounts, Plan, Who, make_plan
from ratelimit.redis_cluster import Cluster, primary_of
from ratelimit.redis_command import Commands
from ratelimit.redis_link import Hooks, Link
from ratelimit.redis_wire import LINGER_S, SOON_S, Call, Wire
from ratelimit.store import Charge, Decision, StoreUnavailable

BACKLOG: Final = 10_000
"""Settles kept while Redis is away; beyond that the leases must do."""
SETTLE_TRIES: Final = 5
RESEND_S: Final = 1.0
RESEND_FOR_S: Final = 25.0
"""The script remembers what is settled a little longer (DONE_US)."""
LATENCY_BUCKETS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)

_PROBE_RULE: Final = Rule(name="probe", limit=60_000)
# No tenant is named so: a quoted name has no exclamation mark.
PROBE: Final = Plan("!", "", FREE, make_plan([_PROBE_RULE], Who(Principal("!"), "")).buckets)


class Routes(Protocol):
    """The way to the server that has the keys of a slot."""

    def wire_of(self, slot: int) -> Wire | None: ...

    def ready(self) -> str | None: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class RedisStore:
    """A `Store` on one server, a server that Sentinels watch, or a cluster. `start` waits for the
    first attempt to connect, not for success. `lease_s`: of every reservation."""

    def __init__(self, config: RedisConfig, metrics: Metrics, lease_s: float) -> None:
        self._config = config
        self._commands = Commands(config.key_prefix, int(lease_s * 1e6))
        self._endpoint = parse(config.url)
        self._tls = tls_context(config) if self._endpoint.tls else None
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
        self._in_use = False
        self._seconds = metrics.histogram(
            "headrace_limit_store_seconds", "Time until the store answered.", LATENCY_BUCKETS
        )
        self._routes: Routes = self._make_routes()

    def __repr__(self) -> str:
        return f"<RedisStore {self._routes!r}>"

    def _make_routes(self) -> Routes:
        config, endpoint = self._config, self._endpoint
        name = f"the limits' store {endpoint}"

        async def fixed() -> Endpoint:
            return endpoint

        async def asked() -> Endpoint:
            return await primary_of(config)

        if config.cluster:
            return Cluster(config, self._make_node)
        find = asked if config.sentinels else fixed
        return Link(name, config, find, self._tls, self._hooks(self._probe))

    def _make_node(self, endpoint: Endpoint) -> Link:
        async def fixed() -> Endpoint:
            return endpoint

        assert isinstance(self._routes, Cluster)
        hooks = self._hooks(list)._replace(redirect=self._routes.redirect)
        return Link(f"the limits' store {endpoint}", self._config, fixed, self._tls, hooks)

    def _hooks(self, probe: Any) -> Hooks:
        return Hooks(self._keep, self._seconds.observe_many, _nowhere, self._changed, probe)

    async def start(self) -> None:
        self._id_prefix = secrets.token_hex(8).encode()
        await self._routes.start()

    async def close(self) -> None:
        """Send what is settled, and disconnect."""
        if self._resend_timer is not None:
            self._resend_timer.cancel()
        self._resend()
        await self._routes.close()
        self._show(False)

    def ready(self) -> str | None:
        return self._routes.ready()

    def tick(self) -> None:
        """Nothing to do: reservations are leases of their own."""

    async def reserve(self, charge: Charge) -> Decision:
        commands, plan = self._commands, charge.plan
        self._ids += 1
        # An id that no other gateway uses: 64 random bits of this one and a count.
        charge.id = b"%b%016x" % (self._id_prefix, self._ids)
        template = commands.template(plan)
        wire = self._routes.wire_of(template.slot)
        if wire is None:
            raise StoreUnavailable("circuit_open")
        command = template.reserve % (charge.id, *charge.least, *charge.asked)
        try:
            reply = await wire.call(command, template.slot)
            if type(reply) is not list or len(reply) != 1 + len(plan.buckets):
                raise StoreUnavailable("protocol")
            sum(reply)  # a TypeError where there is anything but numbers
        except BaseException as error:
            # Failed or cancelled: what may have been charged is given back.
            self.settle(charge, plan.nothing)
            if isinstance(error, TypeError):
                error = StoreUnavailable("protocol")
            if isinstance(error, StoreUnavailable):
                self._failures.labels(error.kind).inc()
            raise error from None
        granted = reply.pop(0)
        return Decision(granted > 0, reply, granted >> 1)

    def progress(self, charge: Charge, used: Amounts) -> None:
        template = self._commands.template(charge.plan)
        wire = self._routes.wire_of(template.slot)
        if wire is not None:
            wire.submit_later(Call(template.use % (b"c", charge.id, *used), template.slot))

    def settle(self, charge: Charge, used: Amounts) -> None:
        template = self._commands.template(charge.plan)
        call = Call(template.use % (b"s", charge.id, *used), template.slot, kept=True)
        wire = self._routes.wire_of(template.slot)
        if wire is None:
            self._keep(call)
        else:
            wire.submit_later(call, SOON_S if charge.plan.releases else LINGER_S)

    async def levels(self, plan: Plan) -> Sequence[int]:
        levels: list[int] = (await self._ask(plan, self._commands.look(plan)))[1:]
        return levels

    async def reset(self, plan: Plan) -> None:
        await self._ask(plan, self._commands.reset(plan))

    async def _ask(self, plan: Plan, command: bytes) -> Any:
        slot = self._commands.template(plan).slot
        wire = self._routes.wire_of(slot)
        if wire is None:
            raise StoreUnavailable("circuit_open")
        return await wire.call(command, slot)

    def _probe(self) -> list[bytes]:
        """Reserve and settle on a bucket of our own."""
        self._ids += 1
        name = b"%b%016x" % (self._id_prefix, self._ids)
        amounts = PROBE.amounts(0, 0, 0)
        commands = self._commands
        return [
            commands.reserve(PROBE, name, amounts, amounts),
            commands.use(PROBE, b"s", name, amounts),
        ]

    def _keep(self, call: Call) -> None:
        """Remember a settle that the server has not acknowledged."""
        now = time.monotonic()
        if call.due_at:
            call.tries += 1
            call.sent_at = call.sent_at or call.due_at - self._config.deadline_s
        call.due_at, call.expired = 0.0, False
        stale = call.sent_at and now - call.sent_at > RESEND_FOR_S
        if stale or call.tries > SETTLE_TRIES or len(self._backlog) >= BACKLOG:
            self._failures.labels("settle_dropped").inc()
            return
        self._backlog.append(call)
        if self._resend_timer is None and self._routes.wire_of(call.slot) is not None:
            self._resend_timer = asyncio.get_running_loop().call_later(RESEND_S, self._resend)

    def _resend(self) -> None:
        self._resend_timer = None
        calls, self._backlog = self._backlog, deque()
        for call in calls:
            wire = self._routes.wire_of(call.slot)
            if wire is not None:
                wire.submit_later(call)
            else:
                self._backlog.append(call)

    def _changed(self) -> None:
        """A server was connected or lost."""
        self._show(self._routes.ready() is None)
        if self._backlog:
            self._resend()

    def _show(self, in_use: bool) -> None:
        """By differences: while a reload takes place an old store and a new one count together."""
        self._state.inc(in_use - self._in_use)
        self._in_use = in_use


def _nowhere(call: Call, error: str) -> bool:
    return False


def tls_context(config: RedisConfig) -> ssl.SSLContext:
    """For a rediss:// url. Raises ConfigError."""
    try:
        return ssl.create_default_context(cafile=config.ca)
    except OSError as error:
        raise ConfigError(f"limits: cannot read the certificates {config.ca}: {error}") from error
