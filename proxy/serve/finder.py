"""Asks DNS for the replicas of `discover`, once per host: in the core, or in a worker that is
alone. What is found goes to the supervisor, which makes it part of the configuration.

The protocol is dnspython's (queries over UDP, answers that do not fit over TCP, ids and ports at
random); what an answer is worth is judged in `lookup.py`. `/etc/hosts` is not looked at, search
lists and `ndots` of `/etc/resolv.conf` are. Performs: sockets, timers.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import re
from collections.abc import Callable, Mapping, Sequence

from core.errors import ConfigError
from core.metrics import Metrics
from core.tasks import spawn
from proxy.serve.discover_config import DiscoverConfig, DnsConfig, server_address
from proxy.serve.discovery import cut_short, nothing_of
from proxy.serve.lookup import Answer, Lookup
from proxy.serve.supervise.messages import Found

try:
    import dns.asyncresolver
    import dns.exception
    import dns.flags
    import dns.message
    import dns.nameserver
    import dns.rdatatype
    import dns.resolver
except ImportError:  # an installation without the extra `dns`
    AVAILABLE = False
else:
    AVAILABLE = True

UDP_BYTES = 1232
"""The largest answer that is asked for over UDP: it is not fragmented on any path (DNS flag day
2020)."""
JITTER = 0.1
_TARGET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}\Z")
_MISSING = "$.discover: needs the package dnspython; install `headrace[dns]`"
_log = logging.getLogger("headrace.discovery")


def check_library() -> None:
    """Raises ConfigError when DNS cannot be asked for want of its library."""
    if not AVAILABLE:
        raise ConfigError(_MISSING)


class NoAnswer(Exception):
    """`str()` says why, in a few words."""


class Resolver:
    """Asks name servers. Raises ConfigError when it cannot."""

    def __init__(self, config: DnsConfig) -> None:
        check_library()
        try:
            resolver = dns.asyncresolver.Resolver(configure=not config.servers)
        except dns.exception.DNSException as error:
            raise ConfigError(f"$.dns.servers: give some; /etc/resolv.conf: {error}") from error
        if config.servers:
            servers = (server_address(text) for text in config.servers)
            resolver.nameservers = [dns.nameserver.Do53Nameserver(*server) for server in servers]
        resolver.timeout = config.timeout_s / 2  # of one server, so that there is time for another
        resolver.lifetime = config.timeout_s
        resolver.use_edns(0, 0, UDP_BYTES)
        self._resolver = resolver

    def __repr__(self) -> str:
        return f"<Resolver {self._resolver.nameservers}>"

    async def ask(self, query: str) -> Answer:
        """`query`: record type and name. Raises NoAnswer."""
        kind, _, name = query.partition(" ")
        try:
            found = await self._resolver.resolve(name, kind, raise_on_no_answer=False, search=True)
        except dns.resolver.NXDOMAIN as error:
            refused: dict[object, dns.message.QueryMessage] = error.kwargs["responses"]
            response = list(refused.values())[-1]  # of the last name of the search list
            return Answer((), float(response.resolve_chaining().minimum_ttl), _may_say(response))
        except dns.resolver.LifetimeTimeout as error:
            raise NoAnswer("no answer in time") from error
        except dns.exception.DNSException as error:
            raise NoAnswer(f"no usable answer ({type(error).__name__})") from error
        ttl_s = float(found.chaining_result.minimum_ttl)
        if found.rrset is None:
            return Answer((), ttl_s, _may_say(found.response))
        if kind == "SRV":
            return Answer(_best_services(found.rrset), ttl_s)
        hosts = tuple(r.address for r in found.rrset if _may_be_a_replica(r.address))
        if not hosts:
            raise NoAnswer("none of its addresses can be a replica's")
        return Answer(hosts, ttl_s)


def _may_say(response: dns.message.Message) -> bool:
    """Whether "there is nothing" comes from the zone: answered by its server, or with its SOA
    record, as who passes it on must (RFC 2308 section 2)."""
    cited = any(rrset.rdtype == dns.rdatatype.SOA for rrset in response.authority)
    return cited or bool(response.flags & dns.flags.AA)


def _best_services(records: dns.rrset.RRset) -> tuple[str, ...]:
    """Those of the lowest priority number; a target `.` is none (RFC 2782)."""
    best = min(record.priority for record in records)
    return tuple(
        f"{target}:{record.port}"
        for record in records
        if record.priority == best
        and record.port
        and _TARGET.match(target := record.target.to_text(omit_final_dot=True))
    )


def _may_be_a_replica(address: str) -> bool:
    """Not every host of a link (169.254.169.254 has a cloud's secrets), nor several, nor none."""
    ip = ipaddress.ip_address(address)
    return not (ip.is_link_local or ip.is_multicast or ip.is_unspecified)


class Finder:
    """`say` (see `connect`) is told whenever something has changed."""

    def __init__(self, metrics: Metrics) -> None:
        self._lookups: dict[str, Lookup] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._config = DnsConfig()
        self._sources: Sequence[DiscoverConfig] = ()
        self._say: Callable[[Found], None] | None = None
        self._said = Found()
        self._asked = metrics.counter(
            "headrace_discovery_lookups_total",
            "DNS queries for replicas, by query and result: hosts, empty or failed.",
            ("query", "result"),
        )
        self._hosts = metrics.gauge(
            "headrace_discovery_hosts", "What DNS named, as far as it is used.", ("query",)
        )
        self._stale = metrics.gauge(
            "headrace_discovery_stale", "1 while the last answer is kept as none came.", ("query",)
        )

    def __repr__(self) -> str:
        return f"<Finder {list(self._lookups.values())}>"

    def connect(self, say: Callable[[Found], None]) -> None:
        """Begin to ask. To be called once."""
        self._say = say
        self._start()

    def use(self, sources: Sequence[DiscoverConfig], config: DnsConfig) -> None:
        """Ask for these from now on. What is known of others is forgotten."""
        wanted = {query for source in sources for query in source.queries}
        changed, self._config, self._sources = config != self._config, config, sources
        for query in list(self._lookups):
            if changed or query not in wanted:
                self._end(query, forget=query not in wanted)
        for query in sorted(wanted - self._lookups.keys()):
            self._lookups[query] = Lookup(query, config.min_s, config.max_s)
        if self._say is not None:
            self._start()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._tasks.clear()

    def _start(self) -> None:
        for query in self._lookups.keys() - self._tasks.keys():
            self._tasks[query] = spawn(self._follow(query), f"discover {query}")

    def _end(self, query: str, *, forget: bool) -> None:
        if (task := self._tasks.pop(query, None)) is not None:
            task.cancel()
        del self._lookups[query]
        if forget:
            self._hosts.remove(query)
            self._stale.remove(query)

    async def _follow(self, query: str) -> None:
        lookup = self._lookups[query]
        while True:
            await self._look(lookup)
            await asyncio.sleep(lookup.due_s * (1 + JITTER * random.random()))

    async def _look(self, lookup: Lookup) -> None:
        before = lookup.trouble
        try:
            answer = await Resolver(self._config).ask(lookup.query)  # resolv.conf may have changed
        except (NoAnswer, ConfigError) as error:
            result = "failed"
            lookup.failed(str(error))
        else:
            result = "hosts" if answer.hosts else "empty"
            lookup.answered(answer)
        self._asked.labels(lookup.query, result).inc()
        self._hosts.labels(lookup.query).set(len(lookup.hosts or ()))
        self._stale.labels(lookup.query).set(1.0 if lookup.trouble and lookup.hosts else 0.0)
        if lookup.trouble and not before:
            stays = "; its last answer stays in use" if lookup.hosts else ""
            _log.warning("DNS %s%s", lookup.trouble, stays)
        elif before and not lookup.trouble:
            _log.info("DNS %s: answered again", lookup.query)
        self._tell()

    def _tell(self) -> None:
        hosts = {query: at.hosts for query, at in self._lookups.items() if at.hosts is not None}
        troubles = [at.trouble for at in self._lookups.values() if at.trouble]
        for source in self._sources:
            troubles += filter(None, [cut_short(source, hosts), nothing_of(source, hosts)])
        said = Found(hosts, tuple(f"DNS {trouble}" for trouble in troubles))
        if self._say is not None and said != self._said:
            self._said = said
            self._say(said)


def look_once(
    queries: Sequence[str], config: DnsConfig
) -> tuple[Mapping[str, tuple[str, ...]], dict[str, str]]:
    """What DNS has for them now, and why it has not, in words, both by query. In a loop of its own,
    within `config.timeout_s`: not for a process that has one. Raises ConfigError."""
    lookups = [Lookup(query, config.min_s, config.max_s) for query in queries]
    asyncio.run(_look_at_all(Resolver(config), lookups))
    found = {lookup.query: lookup.hosts for lookup in lookups if lookup.hosts}
    return found, {lookup.query: lookup.trouble for lookup in lookups if lookup.trouble}


async def _look_at_all(resolver: Resolver, lookups: Sequence[Lookup]) -> None:
    async def look(lookup: Lookup) -> None:
        try:
            lookup.answered(await resolver.ask(lookup.query))
        except NoAnswer as error:
            lookup.failed(str(error))

    await asyncio.gather(*map(look, lookups))
