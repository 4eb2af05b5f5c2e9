from __future__ import annotations

from typing import Any

from ratelimit.config import RedisConfig
from ratelimit.endpoint import Endpoint
from ratelimit.redis_cluster import ASKING, Cluster
from ratelimit.redis_wire import Call


class FakeWire:
    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def submit(self, call: Call) -> None:
        self.sent.append(call.command)


class FakeLink:
    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.wire: FakeWire | None = FakeWire()
        self.begun = 0

    def begin(self) -> None:
        self.begun += 1

    def ready(self) -> str | None:
        return None if self.wire else "down"


def cluster() -> tuple[Cluster, list[FakeLink]]:
    links: list[FakeLink] = []

    def make(endpoint: Endpoint) -> Any:
        links.append(FakeLink(endpoint))
        return links[-1]

    return Cluster(RedisConfig(url="redis://me@first:7000", cluster=True), make), links


async def test_the_map_says_who_has_a_slot() -> None:
    it, links = cluster()
    assert it.wire_of(5) is None
    assert "not started" in (it.ready() or "")
    await it._use([[0, 8191, [b"a", 1], [b"r", 9]], [8192, 16383, ["b", 2]]], "first")
    assert [(link.endpoint.host, link.endpoint.port) for link in links] == [("a", 1), ("b", 2)]
    assert links[0].endpoint.username == "me"
    assert it.wire_of(8191) is links[0].wire
    assert it.wire_of(8192) is links[1].wire
    links[1].wire = None
    assert it.ready() == "down"


async def test_slots_that_nobody_serves_are_a_reason() -> None:
    it, _ = cluster()
    await it._use([[0, 99, ["a", 1]]], "first")
    it._why = ""
    assert it.ready() == "the cluster redis://first:7000: slots are not served"


async def test_a_slot_that_has_moved_is_remembered() -> None:
    it, links = cluster()
    call = Call(b"x", 7)
    assert it.redirect(call, "MOVED 7 b:2")
    assert links[0].begun == 1
    assert links[0].wire is not None
    assert links[0].wire.sent == [b"x"]
    assert it.wire_of(7) is links[0].wire
    assert it._stale.is_set()


async def test_a_slot_that_is_being_moved_is_asked_for_once() -> None:
    it, links = cluster()
    assert it.redirect(Call(b"x", 7), "ASK 7 :2")
    assert links[0].endpoint.host == "first"  # no host: the same
    assert links[0].wire is not None
    assert links[0].wire.sent == [ASKING, b"x"]
    assert it.wire_of(7) is None


async def test_a_call_is_not_sent_in_circles_or_to_nobody() -> None:
    it, links = cluster()
    call = Call(b"x", 7)
    assert [it.redirect(call, f"MOVED 7 b:{port}") for port in range(5)] == [True] * 3 + [False] * 2
    assert not it.redirect(Call(b"y"), "TRYAGAIN later")
    links[0].wire = None
    assert not it.redirect(Call(b"z"), "MOVED 7 b:0")
