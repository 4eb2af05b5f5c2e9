"""Usage records on their way to a real Valkey."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis

from ratelimit.config import RedisConfig
from ratelimit.redis_stream import RedisStream


@pytest.fixture
def client(valkey: Any) -> Any:
    with redis.Redis(unix_socket_path=valkey.socket_path) as connection:
        yield connection


@pytest.fixture
async def stream(valkey: Any) -> AsyncIterator[RedisStream]:
    lost: list[int] = []
    config = RedisConfig(url=valkey.url, retry_max_s=0.1, connect_timeout_s=0.5)
    made = RedisStream(config, "usage", 1000, lost.append)
    await made.start()
    yield made
    await made.stop()
    made.close()
    assert lost == []


def texts(client: Any) -> list[str]:
    return [fields[b"usage"].decode() for _, fields in client.xrange("usage")]


async def eventually(condition: Callable[[], object], within_s: float = 8.0) -> None:
    give_up_at = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up_at, "not in time"
        await asyncio.sleep(0.01)


async def test_entries_arrive_in_order(stream: RedisStream, client: Any) -> None:
    for number in range(500):
        stream.put(b"%d\n" % number)
    stream.flush()
    await eventually(lambda: client.xlen("usage") == 500)
    assert texts(client) == [str(number) for number in range(500)]


async def test_the_stream_does_not_grow_without_end(stream: RedisStream, client: Any) -> None:
    for _ in range(20):
        for number in range(500):
            stream.put(b"%d\n" % number)
        stream.flush()
        await asyncio.sleep(0)
    await eventually(lambda: texts(client)[-1:] == ["499"])
    await stream.stop()
    assert 1000 <= client.xlen("usage") < 1300


async def test_what_was_written_during_an_outage_arrives_after_it(
    stream: RedisStream, valkey: Any, client: Any
) -> None:
    valkey.stop()
    for number in range(100):
        stream.put(b"%d\n" % number)
        stream.flush()
        await asyncio.sleep(0.002)
    valkey.start()
    await eventually(lambda: client.xlen("usage") >= 100)
    assert sorted(set(map(int, texts(client)))) == list(range(100))


async def test_what_a_stopped_server_swallows_is_sent_again(
    stream: RedisStream, valkey: Any, client: Any
) -> None:
    valkey.pause()
    for number in range(10):
        stream.put(b"%d\n" % number)
    stream.flush()
    await eventually(lambda: stream.waiting_bytes)  # given up, and kept
    valkey.restart()  # and what it had in its socket is gone
    await eventually(lambda: client.xlen("usage") >= 10)
    assert set(map(int, texts(client))) == set(range(10))


async def test_stopping_waits_for_what_was_sent(valkey: Any, client: Any) -> None:
    lost: list[int] = []
    made = RedisStream(RedisConfig(url=valkey.url), "usage", 1000, lost.append)
    await made.start()
    made.put(b"last\n")
    await made.stop()
    made.close()
    assert (texts(client), lost) == (["last"], [])


async def test_a_key_of_another_type_loses_nothing_unseen(valkey: Any, client: Any) -> None:
    client.set("usage", "something else")
    lost: list[int] = []
    made = RedisStream(RedisConfig(url=valkey.url), "usage", 1000, lost.append)
    await made.start()
    made.put(b"one\n")
    made.flush()
    await made.stop()
    made.close()
    assert lost == [1]


async def test_what_a_full_server_refuses_is_kept(stream: RedisStream, client: Any) -> None:
    client.config_set("maxmemory", 1)
    for number in range(10):
        stream.put(b"%d\n" % number)
    stream.flush()
    await eventually(lambda: stream.waiting_bytes)
    assert client.xlen("usage") == 0
    client.config_set("maxmemory", 0)
    await eventually(lambda: client.xlen("usage") == 10)
