from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ratelimit.circuit import Circuit
from ratelimit.redis_reply import command, join
from ratelimit.redis_wire import SOON_S, Call, Wire
from ratelimit.store import StoreUnavailable

BY_HASH, BY_TEXT = join((b"EVALSHA", b"abc")), join((b"EVAL", b"return 1"))
SCRIPT_CALL = b"*3\r\n" + BY_HASH + join((b"0",))


def waiting(command: bytes) -> Call:
    return Call(command, future=asyncio.get_running_loop().create_future())


class FakeTransport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.aborted = True


class Fixture:
    def __init__(self, failures_to_open: int = 3) -> None:
        self.unsettled: list[Call] = []
        self.seconds: list[float] = []
        self.circuit = Circuit(failures_to_open, 1.0)
        self.wire = Wire(
            self.circuit,
            60.0,
            (BY_HASH, BY_TEXT),
            self.unsettled.append,
            lambda seconds, count: self.seconds.extend([seconds] * count),
        )
        self.transport: Any = FakeTransport()
        self.wire.connection_made(self.transport)

    async def sent(self) -> bytes:
        """What was written since the last time, after this turn of the loop."""
        await asyncio.sleep(0)
        written = b"".join(self.transport.written)
        self.transport.written.clear()
        return written

    async def expire(self, *calls: Call) -> None:
        for call in calls:
            call.due_at = 1e-9
        self.wire._timer_at = float("inf")
        self.wire._expire()


async def test_calls_of_one_turn_are_one_write_and_replies_come_in_order() -> None:
    it = Fixture()
    futures = [it.wire.call(command(b"ECHO", b"%d" % i)) for i in range(3)]
    it.wire.submit_later(Call(command(b"SETTLE")))
    await it.sent()
    replies = b":1\r\n*2\r\n:1\r\n:-5\r\n$1\r\nx\r\n:1\r\n"
    for i in range(len(replies)):
        it.wire.data_received(replies[i : i + 1])
    assert await asyncio.gather(*futures) == [1, [1, -5], b"x"]
    assert len(it.seconds) == 4


async def test_a_loop_that_is_always_late_waits_for_replies_once() -> None:
    it = Fixture()
    future = it.wire.call(b"a")
    await it.sent()
    it.wire._pending[0].due_at = 1e-9
    it.wire._timer_at = 0.0
    it.wire._expire()
    assert not future.done()  # its reply may have come meanwhile
    it.wire._timer_at = 0.0
    it.wire._expire()
    with pytest.raises(StoreUnavailable, match="timeout"):
        await future
    it.wire._timer_at = 0.0
    after = it.wire.call(b"b")
    await it.sent()
    it.wire._expire()
    assert not after.done()
    it.wire.drop("closed")
    with pytest.raises(StoreUnavailable):
        await after


async def test_a_settle_alone_waits_for_company() -> None:
    it = Fixture()
    it.wire.submit_later(Call(b"settle;"))
    assert await it.sent() == b""
    it.wire.call(b"reserve;")
    assert await it.sent() == b"settle;reserve;"


async def test_one_timer_serves_settles_that_came_after_a_write() -> None:
    it = Fixture()
    it.wire.submit_later(Call(b"first;"))
    timer = it.wire._flush_later
    it.wire.call(b"reserve;")
    assert await it.sent() == b"first;reserve;"
    it.wire.submit_later(Call(b"second;"))
    assert timer is not None
    assert it.wire._flush_later is timer
    it.wire._flush_lingering()
    assert await it.sent() == b"second;"
    assert it.wire._flush_later is None


async def test_who_cannot_wait_so_long_takes_the_others_along() -> None:
    it = Fixture()
    it.wire.submit_later(Call(b"late;"))
    patient = it.wire._flush_later
    it.wire.submit_later(Call(b"soon;"), SOON_S)
    hurried = it.wire._flush_later
    assert patient is not None
    assert patient.cancelled()
    it.wire.submit_later(Call(b"later;"))
    assert it.wire._flush_later is hurried
    it.wire._flush_lingering()
    assert await it.sent() == b"late;soon;later;"


async def test_calls_of_two_writes_are_observed_apart() -> None:
    it = Fixture()
    early, late = it.wire.call(b"a"), it.wire.call(b"b")
    await it.sent()
    it.wire._pending[0].due_at -= 1.0
    it.wire.data_received(b":1\r\n:2\r\n")
    assert await asyncio.gather(early, late) == [1, 2]
    assert it.seconds[0] == pytest.approx(it.seconds[1] + 1.0)


async def test_a_forgotten_script_is_sent_in_full_once() -> None:
    it = Fixture()
    future = it.wire.call(SCRIPT_CALL)
    assert await it.sent() == SCRIPT_CALL
    it.wire.data_received(b"-NOSCRIPT No matching script.\r\n")
    assert await it.sent() == b"*3\r\n" + BY_TEXT + join((b"0",))
    it.wire.data_received(b":7\r\n")
    assert await future == 7
    assert it.circuit.failures == 0


async def test_error_replies_fail_their_call_and_open_the_circuit() -> None:
    it = Fixture()
    for _ in range(3):
        future = it.wire.call(b"x")
        await it.sent()
        it.wire.data_received(b"-OOM no\r\n")
        with pytest.raises(StoreUnavailable, match="oom"):
            await future
    assert it.wire.lost.result() == "oom"
    assert it.transport.aborted


async def test_a_server_that_may_not_write_any_more_is_left_at_once() -> None:
    it = Fixture()
    future = it.wire.call(b"x")
    await it.sent()
    it.wire.data_received(b"-READONLY no\r\n")
    with pytest.raises(StoreUnavailable, match="readonly"):
        await future
    assert it.wire.lost.result() == "readonly"


async def test_calls_for_keys_that_are_elsewhere_may_be_taken_over() -> None:
    it = Fixture()
    taken: list[tuple[bytes, str]] = []

    def redirect(call: Call, error: str) -> bool:
        taken.append((call.command, error))
        return len(taken) == 1

    it.wire._redirect = redirect
    first, second = it.wire.call(b"x", 7), it.wire.call(b"y", 7)
    await it.sent()
    it.wire.data_received(b"-MOVED 7 h:1\r\n-ASK 7 h:1\r\n")
    assert taken == [(b"x", "MOVED 7 h:1"), (b"y", "ASK 7 h:1")]
    assert not first.done()
    with pytest.raises(StoreUnavailable, match="ask"):
        await second
    first.cancel()


async def test_a_success_in_between_keeps_it_closed() -> None:
    it = Fixture()
    for _ in range(4):
        failing, fine = it.wire.call(b"x"), it.wire.call(b"y")
        await it.sent()
        it.wire.data_received(b"-OOM no\r\n:1\r\n")
        assert isinstance(failing.exception(), StoreUnavailable)
        assert await fine == 1
    assert not it.wire.lost.done()


@pytest.mark.parametrize("error", [b"-WRONGTYPE no", b"-TRYAGAIN later"])
async def test_what_concerns_one_tenant_is_not_the_servers_failure(error: bytes) -> None:
    it = Fixture(failures_to_open=1)
    future = it.wire.call(b"x")
    await it.sent()
    it.wire.data_received(error + b"\r\n")
    assert isinstance(future.exception(), StoreUnavailable)
    assert not it.wire.lost.done()


@pytest.mark.parametrize(
    "data",
    [
        b"?nonsense\r\n",
        b":1\r\n:2\r\n",
        b"*-5\r\n",
        b"*4294967296\r\n",
        b"*1\r\n" * 50 + b":1\r\n" * 2,
        b":99999999999999999999\r\n",
        b"$2000000\r\n" + b"x" * 1_100_000,
    ],
    ids=["nonsense", "more", "negative", "huge", "deep", "number", "endless"],
)
async def test_what_is_no_reply_to_anything_drops_the_connection(data: bytes) -> None:
    it = Fixture()
    future = it.wire.call(b"x")
    await it.sent()
    it.wire.data_received(data)
    assert it.wire.lost.result() == "protocol"
    assert future.done()
    if (error := future.exception()) is not None:
        assert isinstance(error, StoreUnavailable)


async def test_a_reader_out_of_memory_drops_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Reader:
        def feed(self, data: bytes) -> None: ...

        def gets(self) -> None:
            raise MemoryError

    it = Fixture()
    monkeypatch.setattr(it.wire, "_reader", Reader())
    future = it.wire.call(b"x")
    await it.sent()
    it.wire.data_received(b"*2147483647\r\n")
    with pytest.raises(StoreUnavailable, match="protocol"):
        await future


async def test_a_lost_connection_fails_reserves_and_hands_back_settles() -> None:
    it = Fixture()
    settle, later = Call(b"settle", kept=True), Call(b"later", kept=True)
    future = it.wire.call(b"reserve")
    it.wire.submit(settle)
    it.wire.submit(Call(b"progress"))
    await it.sent()
    it.wire.submit_later(later)
    it.wire.connection_lost(None)
    with pytest.raises(StoreUnavailable, match="lost"):
        await future
    assert it.unsettled == [settle, later]
    after = it.wire.call(b"after")
    with pytest.raises(StoreUnavailable, match="lost"):
        await after


async def test_a_late_reply_belongs_to_its_own_call() -> None:
    it = Fixture()
    late = waiting(b"a")
    it.wire.submit(late)
    future = it.wire.call(b"b")
    await it.sent()
    await it.expire(late)
    it.wire.data_received(b":1\r\n")
    assert it.circuit.failures == 1
    it.wire.data_received(b":2\r\n")
    assert await future == 2
    assert isinstance(late.future and late.future.exception(), StoreUnavailable)
    assert it.circuit.failures == 0


async def test_calls_that_expire_together_are_one_failure() -> None:
    it = Fixture(failures_to_open=2)
    calls = [waiting(b"a") for _ in range(5)]
    for call in calls:
        it.wire.submit(call)
    await it.sent()
    await it.expire(*calls)
    assert all(isinstance(c.future and c.future.exception(), StoreUnavailable) for c in calls)
    assert not it.wire.lost.done()


async def test_a_loop_that_was_held_up_reads_before_it_judges() -> None:
    it = Fixture()
    call = waiting(b"a")
    it.wire.submit(call)
    await it.sent()
    call.due_at = it.wire._timer_at = 1e-9
    it.wire._expire()
    assert not call.expired
    assert it.circuit.failures == 0
    assert it.wire._timer is not None
    it.wire.drop("closed")
    with pytest.raises(StoreUnavailable):
        await call.future  # type: ignore[misc]
