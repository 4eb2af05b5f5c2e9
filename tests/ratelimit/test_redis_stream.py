from __future__ import annotations

import pytest
from redis.cluster import key_slot

from ratelimit import redis_stream
from ratelimit.config import RedisConfig
from ratelimit.redis_reply import command
from ratelimit.redis_stream import RedisStream, slot_of
from ratelimit.redis_wire import Call


class FakeWire:
    """Takes calls until told to refuse them; those are handed back at once, as a lost one does."""

    def __init__(self, stream: RedisStream) -> None:
        self._stream = stream
        self.refuses = False
        self.calls: list[Call] = []

    def submit(self, call: Call) -> None:
        if self.refuses:
            self._stream._unsettled(call)
        else:
            self.calls.append(call)


class Losses:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, count: int) -> None:
        self.count += count


@pytest.fixture
def losses() -> Losses:
    return Losses()


@pytest.fixture
def stream(losses: Losses) -> RedisStream:
    return RedisStream(RedisConfig(url="redis://cache:6379"), "usage", 1000, losses)


def connect(stream: RedisStream) -> FakeWire:
    wire = FakeWire(stream)
    stream._routes.wire = wire  # type: ignore[attr-defined]
    return wire


def entry(text: bytes) -> bytes:
    return command(b"XADD", b"usage", b"MAXLEN", b"~", b"1000", b"*", b"usage", text)


def test_entries_wait_for_a_flush_and_keep_their_order(stream: RedisStream) -> None:
    wire = connect(stream)
    stream.put(b"one\n")
    stream.put(b"two\n")
    assert wire.calls == []
    assert stream.waiting_bytes == len(entry(b"one")) + len(entry(b"two"))
    stream.flush()
    assert [call.command for call in wire.calls] == [entry(b"one"), entry(b"two")]
    assert all(call.kept for call in wire.calls)
    assert stream.waiting_bytes == 0


def test_what_redis_did_not_acknowledge_is_sent_again(stream: RedisStream) -> None:
    stream.put(b"one\n")
    stream.flush()  # nobody there
    wire = connect(stream)
    wire.refuses = True
    stream.flush()
    assert stream.waiting_bytes == len(entry(b"one"))
    wire.refuses = False
    stream.flush()
    assert [call.command for call in wire.calls] == [entry(b"one")]
    stream._unsettled(wire.calls.pop())  # sent, and lost
    stream.flush()
    assert [call.command for call in wire.calls] == [entry(b"one")]


def test_the_buffer_is_bounded_and_what_is_lost_counted(
    stream: RedisStream, losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_stream, "BUFFER_BYTES", 2 * len(entry(b"one")))
    for text in (b"one\n", b"two\n", b"six\n"):
        stream.put(text)
    assert losses.count == 1
    stream.close()
    assert (losses.count, stream.waiting_bytes) == (3, 0)
    stream.close()
    assert losses.count == 3


@pytest.mark.parametrize("key", ["usage", "{usage}:x", "a{b}c", "{}x", "a{b", "a}b{c}", "{{a}}"])
def test_the_slot_is_that_of_a_cluster(key: str) -> None:
    assert slot_of(key) == key_slot(key.encode())
