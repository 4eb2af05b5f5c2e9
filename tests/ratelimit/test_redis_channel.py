"""What of a channel needs no socket: tests/wire/test_hosts.py has the rest."""

from __future__ import annotations

from ratelimit.config import RedisConfig
from ratelimit.redis_channel import RedisChannel


def channel(**settings: object) -> RedisChannel:
    config = RedisConfig(url="redis://h:1/0", **settings)  # type: ignore[arg-type]
    return RedisChannel(config, "hosts", lambda data: None, lambda connected: None)


async def test_without_a_connection_nothing_is_published() -> None:
    made = channel()
    assert not made.connected
    assert not await made.publish(b"x")
    await made.close(b"x")
    assert "not started" in repr(made)


async def test_nodes_of_a_cluster_are_tried_in_turn() -> None:
    made = channel(cluster=True, nodes=("i:2", "j:3"))
    found = []
    for tries in range(4):
        made._tries = tries
        place = await made._place()
        found.append((place.host, place.port))
    assert found == [("h", 1), ("i", 2), ("j", 3), ("h", 1)]


async def test_one_server_is_where_the_url_says() -> None:
    assert str(await channel()._place()) == "redis://h:1"
