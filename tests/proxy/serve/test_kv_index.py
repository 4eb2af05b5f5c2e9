"""Who is followed, and how well each cache is known; without sockets."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from backend.config import KvEventsConfig, ReplicaConfig, UpstreamConfig
from backend.kv.events import Batch
from core.kv_events import Stored, Trust
from core.metrics import Metrics
from proxy.serve.kv_index import KvIndex, Start, _Rank
from routing.exact_cache import Place
from routing.index import PrefixIndex


def start(adapter: str | None, salt: str) -> int:
    return 1


class World:
    def __init__(self) -> None:
        self.metrics = Metrics.private()
        self.index = PrefixIndex(100)
        self.target = self.index.add(100)
        self.kv = KvIndex(self.place, lambda _: True, self.metrics, lambda: 1.0)

    def place(self, replica_id: str) -> Place | None:
        return self.index, self.target

    def use(
        self,
        *replicas: ReplicaConfig,
        start_of: Callable[[str], Start | None] = lambda _: start,
        hashing: str = "h",
    ) -> None:
        self.kv.use(
            replicas,
            upstream=UpstreamConfig(),
            contexts={},
            start_of=start_of,
            hashing=hashing,
            block_tokens=4,
        )

    def state(self, replica_id: str = "r") -> str | None:
        states = [
            trust.value
            for trust in Trust
            if self.metrics.value("headrace_replica_kv_state", replica_id, trust.value)
        ]
        return states[0] if states else None

    def rank(self, number: int = 0) -> _Rank:
        return _Rank(self.kv._replicas["r"], number)


def replica(**fields: object) -> ReplicaConfig:
    return ReplicaConfig(url="http://127.0.0.1:1", model="m", id="r", **fields)  # type: ignore[arg-type]


STORED = Stored([1], None, [1, 2, 3, 4], 4)


async def test_who_is_followed() -> None:
    world = World()
    world.use(replica(kv_events="off"))
    assert world.state() is None
    world.use(replica(), start_of=lambda _: None)
    assert world.state() is None, "its prompts are not known by tokens"
    world.use(replica())
    assert world.state() == "approx"
    world.use()
    assert world.state() is None
    await world.kv.close()


@pytest.mark.parametrize(
    "other",
    [
        replica(kv_events=KvEventsConfig(endpoint="tcp://h:1")),
        replica(data_parallel_rank=1),
        ReplicaConfig(url="http://127.0.0.1:2", model="m", id="r"),
    ],
)
async def test_one_that_is_reached_otherwise_begins_anew(other: ReplicaConfig) -> None:
    world = World()
    world.use(replica())
    rank = world.rank()
    rank.trusted(Trust.EXACT, "")
    rank.happened([STORED])
    world.use(replica(weight=2.0))
    assert world.state() == "exact"
    world.use(other)
    assert (world.state(), world.target.exact) == ("approx", False)
    rank.trusted(Trust.EXACT, "too late")
    rank.cleared()
    assert (world.state(), world.target.exact) == ("approx", False)
    await world.kv.close()


async def test_other_hashing_begins_anew() -> None:
    world = World()
    world.use(replica())
    world.rank().trusted(Trust.EXACT, "")
    world.use(replica(), hashing="another")
    assert world.state() == "approx"
    await world.kv.close()


async def test_a_change_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.kv")
    world = World()
    world.use(replica())
    rank = world.rank()
    rank.trusted(Trust.RECOVERING, "connected")
    rank.trusted(Trust.EXACT, "replayed")
    rank.trusted(Trust.EXACT, "replayed")
    rank.trusted(Trust.RECOVERING, "batches 3 to 4 are missing")
    rank.trusted(Trust.APPROX, "no connection")
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        (
            "INFO",
            "replica r: its cache is known by its events, some of which are missing: connected",
        ),
        ("INFO", "replica r: its cache is known by its events: replayed"),
        (
            "WARNING",
            "replica r: its cache is known by its events, some of which are missing: "
            "batches 3 to 4 are missing",
        ),
        ("WARNING", "replica r: its cache is known by what was sent there alone: no connection"),
    ]
    await world.kv.close()


async def test_the_least_trusted_rank_counts() -> None:
    world = World()
    world.use(replica())
    one, other = world.rank(0), world.rank(1)
    one.trusted(Trust.EXACT, "")
    other.trusted(Trust.RECOVERING, "")
    assert world.state() == "recovering"
    other.trusted(Trust.APPROX, "")
    assert (world.state(), world.target.exact) == ("approx", False)
    other.gone()
    assert (world.state(), world.target.exact) == ("exact", True)
    await world.kv.close()


async def test_what_is_counted() -> None:
    world = World()
    world.use(replica())
    rank = world.rank()
    rank.counted(Batch(1.0, [], None, 2, 3), 0.004)
    rank.counted(Batch(1.0, []), -5.0)
    rank.missed()
    rank.cleared()
    rank.happened([STORED._replace(parent=9), STORED._replace(plain=0)])
    world.kv._replicas["r"].review(1.0)
    world.kv._replicas["r"].review(2.0)
    value = world.metrics.value
    assert value("headrace_kv_event_batches_total", "r") == 2
    assert value("headrace_kv_event_lag_seconds") == 2
    assert value("headrace_kv_events_odd_total", "r", "unknown") == 2
    assert value("headrace_kv_events_odd_total", "r", "malformed") == 3
    assert value("headrace_kv_blocks_left_out_total", "r", "orphan") == 1
    assert value("headrace_kv_blocks_left_out_total", "r", "image") == 1
    assert value("headrace_kv_event_gaps_total", "r") == 1
    assert value("headrace_kv_cache_clears_total", "r") == 1
    await world.kv.close()
