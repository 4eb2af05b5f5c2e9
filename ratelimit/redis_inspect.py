"""The buckets of one tenant in Redis, for operators: look at them and fill them.

For a command that ends: it blocks. Keys are found by SCAN alone, a thousand at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from redis import Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.exceptions import RedisError
from redis.retry import Retry
from redis.sentinel import Sentinel

from ratelimit.config import RedisConfig, Rule
from ratelimit.endpoint import parse, parse_host
from ratelimit.live import (
    Found,
    Keys,
    Live,
    is_of_organisation,
    is_of_tenant,
    slots_left,
    tokens_left,
)

TIMEOUT_S: Final = 5.0
SCAN_COUNT: Final = 1000
MOST_BUCKETS: Final = 10_000
_BATCH: Final = 500


class CannotAsk(Exception):
    """The store did not answer as it should. `str()` is a sentence."""


class Inspector:
    """`models` are the names of all models. `truncated`: a tenant has more than MOST_BUCKETS."""

    def __init__(self, config: RedisConfig, rules: Sequence[Rule], models: Sequence[str]) -> None:
        self._config = config
        self._keys = Keys(config.key_prefix, rules)
        self._models = models
        self._name = f"the limits' store {parse(config.url)}"
        self.truncated = False

    def __repr__(self) -> str:
        return f"<Inspector {self._name}>"

    def show(self, tenant: str) -> list[Live]:
        """The buckets that are not full: of a tenant or, if the name begins with @, of an
        organisation; then those of the tenant's organisations, and those that everybody shares.
        Raises CannotAsk."""
        with self._connected() as client:
            own = self._own(client, tenant)
            organisations = {each.who.get("organisation", "") for each in own} - {""}
            if tenant.startswith("@"):
                organisations = set()
            found = {each.key: each for each in own}
            for name in sorted(organisations) if self._keys.by_organisation else ():
                found |= {each.key: each for each in self._own(client, f"@{name}")}
            for key in self._keys.shared(self._models):
                if (shared := self._keys.read(key)) is not None:
                    found[key] = shared
            return list(self._levels(client, list(found.values())))

    def reset(self, tenant: str, rule: str | None = None) -> int:
        """Fill the buckets of a tenant (or @organisation) itself, of one rule or of all; how many
        there were. Raises CannotAsk."""
        with self._connected() as client:
            own = [each for each in self._own(client, tenant) if rule in (None, each.rule.name)]
            gone = 0
            for batch in _batches(own):
                pipeline = client.pipeline(transaction=False)
                for each in batch:
                    pipeline.delete(each.key)
                gone += sum(pipeline.execute())
            return gone

    def _own(self, client: Any, name: str) -> list[Found]:
        of_organisation = name.startswith("@")
        bare = name.removeprefix("@")
        pattern = self._keys.of_organisation if of_organisation else self._keys.of_tenant
        belongs = is_of_organisation if of_organisation else is_of_tenant
        found: dict[str, Found] = {}  # SCAN may tell of a key twice
        for key in client.scan_iter(match=pattern(bare), count=SCAN_COUNT):
            each = self._keys.read(key.decode("utf-8", "replace"))
            if each is not None and belongs(each, bare):
                if len(found) >= MOST_BUCKETS:
                    self.truncated = True
                    break
                found[each.key] = each
        return [found[key] for key in sorted(found)]

    def _levels(self, client: Any, found: Sequence[Found]) -> Iterator[Live]:
        for batch in _batches(found):
            now_us = _now_us(client)
            pipeline = client.pipeline(transaction=False)
            for each in batch:
                if each.rule.unit == "concurrent":
                    pipeline.zcount(each.key, now_us, "+inf")
                else:
                    pipeline.get(each.key)
            for each, reply in zip(batch, pipeline.execute(), strict=True):
                live: Live | None = None
                if each.rule.unit == "concurrent":
                    live = slots_left(each, reply) if reply else None
                elif reply is not None:
                    live = tokens_left(each, reply.decode("ascii", "replace"), now_us)
                if live is not None:
                    yield live

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        try:
            client = connect(self._config)
            try:
                yield client
            finally:
                client.close()
        except (RedisError, OSError) as error:
            raise CannotAsk(f"{self._name} cannot be asked: {error}") from error


def connect(config: RedisConfig) -> Any:
    """A client that blocks, for at most TIMEOUT_S a call. Raises ConfigError for a password that
    cannot be read, RedisError where there is a Sentinel or a cluster."""
    endpoint = parse(config.url)
    timeouts = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
    options: dict[str, Any] = {**timeouts}
    if endpoint.tls:
        options |= {"ssl": True, "ssl_ca_certs": config.ca}
    login: dict[str, Any] = {}
    if config.password is not None:
        login = {"username": endpoint.username or None, "password": config.password.reveal()}
    if config.cluster:
        seeds = [(endpoint.host, endpoint.port), *map(parse_host, config.nodes)]
        nodes = [ClusterNode(*seed) for seed in seeds]  # type: ignore[no-untyped-call]
        return RedisCluster(startup_nodes=nodes, **options, **login)
    login |= {"db": endpoint.db}
    if config.sentinels:
        hosts = [parse_host(each) for each in config.sentinels]
        secret = config.sentinel_password
        asking = {**options, **({} if secret is None else {"password": secret.reveal()})}
        sentinel = Sentinel(hosts, sentinel_kwargs=asking, **options, **login)  # type: ignore[no-untyped-call]
        return sentinel.master_for(endpoint.host)  # type: ignore[no-untyped-call]
    options["retry"] = Retry(NoBackoff(), 0)
    if endpoint.path:
        return Redis(unix_socket_path=endpoint.path, **options, **login)
    return Redis(host=endpoint.host, port=endpoint.port, **options, **login)


def _now_us(client: Any) -> int:
    """The server's clock, which levels go by."""
    if hasattr(client, "get_primaries"):  # any node of a cluster will do
        seconds, micros = client.execute_command("TIME", target_nodes=client.get_primaries()[0])
    else:
        seconds, micros = client.time()
    return int(seconds) * 1_000_000 + int(micros)


def _batches(found: Sequence[Found]) -> Iterable[Sequence[Found]]:
    return (found[i : i + _BATCH] for i in range(0, len(found), _BATCH))
