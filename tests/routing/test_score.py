from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from routing.learning import ModelSpeed, Speed
from routing.ledger import Account
from routing.score import Score, Weights, queue_seconds, scores, work_tokens

WEIGHTS = Weights(60_000.0, 0.1)


@dataclass
class Replica:
    account: Account = field(default_factory=Account)
    speed: Speed = field(default_factory=lambda: ModelSpeed(16_000.0, 8e-5, 2e-8).replica(1.0))
    kv_tokens: int = 500_000
    foreign_tokens: float = 0.0
    foreign_in_flight: float = 0.0


def terms(replica: Replica, length: int, cached: int = 0, slow_start: float = 0.0) -> Score:
    [result] = scores([replica], (length, 300, ()), [cached], WEIGHTS, [slow_start])
    return Score._make(result)


def test_an_idle_replica_costs_its_own_prefill() -> None:
    result = terms(Replica(), 16_000)
    assert result.own == pytest.approx(1.0 * (1 + 8000 / 60_000))
    assert result.total == result.own
    assert (result.queue, result.others, result.room) == (0, 0, 0)


def test_every_term_by_hand() -> None:
    replica = Replica()
    replica.account.pending_tokens = 8000
    replica.account.in_flight = 10
    replica.account.live_tokens = 100_000
    result = terms(replica, 4000, 3000, slow_start=0.25)
    own = 1000 / 16_000 * (1 + 3500 / 60_000)
    assert result.own == pytest.approx(own)
    assert result.queue == pytest.approx(1.2 * 0.5)
    others = 10 * own + 10 * 300 * 2 * 8e-5 + 300 * 2e-8 * 100_000
    assert result.others == pytest.approx(others)
    assert result.room == 0
    assert result.total == pytest.approx(own + 1.2 * 0.5 + 0.1 * others + 0.25)


def test_what_a_long_prompt_does_to_others_is_bounded() -> None:
    replica = Replica()
    replica.account.in_flight = 10
    decode = 10 * 300 * 2 * 8e-5
    assert terms(replica, 16_000).others == pytest.approx(10 * (1 + 8000 / 60_000) + decode)
    assert terms(replica, 100_000).others == pytest.approx(10 * 1.5 + decode)


def test_at_least_one_token_is_computed() -> None:
    assert terms(Replica(), 100, 128).own > 0
    assert terms(Replica(), 0).own > 0


def test_room_is_free_until_85_percent() -> None:
    replica = Replica(kv_tokens=10_000)
    replica.account.live_tokens = 8500 - 1300
    assert terms(replica, 1000).room == 0
    replica.account.live_tokens = 10_000 - 1300
    assert terms(replica, 1000).room == pytest.approx(2.0)


def test_foreign_traffic_counts() -> None:
    replica = Replica(foreign_tokens=1600, foreign_in_flight=5)
    assert queue_seconds(replica) == pytest.approx(0.12)
    result = terms(replica, 1000)
    assert result.queue == pytest.approx(0.12)
    assert result.others > 0


def test_work_grows_with_position() -> None:
    assert work_tokens(1000, 0, 60_000) == pytest.approx(1000 * (1 + 500 / 60_000))
    assert work_tokens(1000, 60_000, 60_000) > 2000


def test_each_replica_by_its_own_state() -> None:
    busy = Replica()
    busy.account.pending_tokens = 1600
    replicas = [Replica(), busy, Replica()]
    wish = (3200, 300, ())
    together = scores(replicas, wish, [0, 640, 1280], WEIGHTS, [0.0, 0.5, 0.25])
    assert [Score._make(one) for one in together] == [
        terms(replicas[0], 3200),
        terms(busy, 3200, 640, 0.5),
        terms(replicas[2], 3200, 1280, 0.25),
    ]
    assert scores(replicas[:1], wish, [0], WEIGHTS) == [terms(replicas[0], 3200)]
