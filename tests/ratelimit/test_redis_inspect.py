from __future__ import annotations

from typing import Any

import pytest
from charges import REQUESTS, STREAMS
from redis import Redis
from redis.exceptions import ResponseError

from core.section import Secret
from ratelimit import redis_inspect
from ratelimit.bucket import UNITS
from ratelimit.config import RedisConfig
from ratelimit.redis_inspect import CannotAsk, Inspector, connect

NOW_S = 1000
STORED = {
    "headrace:{acme}:leases": "",
    "headrace:{acme}:requests:requests:acme": f"{3 * UNITS} {NOW_S * 1_000_000}",
    "headrace:{acme}:streams:concurrent:acme": 2,
    "headrace:{acme2}:requests:requests:acme2": f"{UNITS} {NOW_S * 1_000_000}",
}


class FakeClient:
    """A Redis with STORED, which knows no KEYS; also its own pipeline."""

    def __init__(self) -> None:
        self.closed = False
        self.replies: list[Any] = []
        self.deleted: list[str] = []

    def scan_iter(self, match: str, count: int) -> Any:
        return iter([key.encode() for key in STORED] * 2)

    def time(self) -> tuple[int, int]:
        return NOW_S, 0

    def pipeline(self, transaction: bool) -> FakeClient:
        assert not transaction
        self.replies = []
        return self

    def get(self, key: str) -> None:
        self.replies.append(str(STORED[key]).encode())

    def zcount(self, key: str, least: int, most: str) -> None:
        assert (least, most) == (NOW_S * 1_000_000, "+inf")
        self.replies.append(STORED[key])

    def delete(self, key: str) -> None:
        self.deleted.append(key)
        self.replies.append(1)

    def execute(self) -> list[Any]:
        return self.replies

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    made = FakeClient()
    monkeypatch.setattr(redis_inspect, "connect", lambda config: made)
    return made


@pytest.fixture
def inspector() -> Inspector:
    return Inspector(RedisConfig(url="redis://cache"), [REQUESTS, STREAMS], ["m"])


def test_the_buckets_of_a_tenant(inspector: Inspector, client: FakeClient) -> None:
    lives = inspector.show("acme")
    assert [(live.found.rule.name, live.left) for live in lives] == [
        ("requests", 3),
        ("streams", 1),
    ]
    assert client.closed
    assert client.deleted == []


def test_one_rule_or_all_are_reset(inspector: Inspector, client: FakeClient) -> None:
    assert inspector.reset("acme", "requests") == 1
    assert client.deleted == ["headrace:{acme}:requests:requests:acme"]
    assert inspector.reset("acme") == 2
    assert inspector.reset("nobody") == 0


def test_what_the_server_says_is_in_the_sentence(
    inspector: Inspector, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(match: str, count: int) -> Any:
        raise ResponseError("NOPERM no")

    monkeypatch.setattr(client, "scan_iter", refuse)
    with pytest.raises(CannotAsk, match=r"the limits' store redis://cache:6379 .*NOPERM no"):
        inspector.show("acme")
    assert client.closed


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://me@cache:7000/3", {"host": "cache", "port": 7000, "db": 3, "username": "me"}),
        ("unix:///run/redis?db=2", {"path": "/run/redis", "db": 2, "username": None}),
    ],
)
def test_it_connects_as_the_gateway_does(
    url: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PW", "secret")
    client: Redis = connect(RedisConfig(url=url, password=Secret("env:PW")))
    given = client.connection_pool.connection_kwargs
    assert {name: given.get(name) for name in expected} == expected
    assert given["password"] == "secret"
