"""Accepting on real sockets, on a board in this process, with a clock by hand."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from running import eventually

from core.load_board import LoadBoard
from core.metrics import Metrics
from proxy.listen.accept import Acceptor
from proxy.listen.balance import Balance


class Worker:
    """One of two, whose load and that of the other are on `board`. `accepted` are its sockets."""

    def __init__(self) -> None:
        self.board = LoadBoard(2)
        self.mine, self.other = self.board.for_worker(0), self.board.for_worker(1)
        self.other.set_accepting(True)
        self.metrics = Metrics.private()
        self.accepted: list[socket.socket] = []
        self.now = 100.0
        self.beat()
        self.acceptor = Acceptor(
            self.deliver,
            load=self.mine,
            balance=Balance(self.mine, [self.other]),
            clock=lambda: self.now,
            metrics=self.metrics,
        )

    def beat(self) -> None:
        self.mine.beat(self.now)
        self.other.beat(self.now)

    def deliver(self, sock: socket.socket, _: Any, context: ssl.SSLContext | None) -> None:
        self.accepted.append(sock)
        self.mine.set_connections(len(self.accepted))

    async def has(self, count: int) -> bool:
        return len(self.accepted) == count

    def paused(self, reason: str) -> float:
        return self.metrics.value("headrace_accept_pauses_total", reason)


class Listening(socket.socket):
    """Fails as many times as there are `failures` before it accepts."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[int] = []
        self.tries = 0
        self.bind(("127.0.0.1", 0))
        self.listen()
        self.setblocking(False)

    def accept(self) -> tuple[socket.socket, Any]:
        self.tries += 1
        if self.failures:
            raise OSError(self.failures.pop(0), "no")
        return super().accept()

    def connect_once(self) -> socket.socket:
        return socket.create_connection(self.getsockname(), 5)


@pytest.fixture
async def worker() -> Any:
    worker = Worker()
    yield worker
    worker.acceptor.close()
    for sock in worker.accepted:
        sock.close()


@pytest.fixture
def listening() -> Iterator[Listening]:
    with Listening() as sock:
        yield sock


async def test_what_is_paused_waits_in_the_queue(worker: Worker, listening: Listening) -> None:
    worker.acceptor.listen(listening, None)
    assert worker.mine.read().accepting
    worker.acceptor.pause("overload")
    worker.acceptor.pause("handshakes")
    worker.acceptor.pause("handshakes")
    assert not worker.mine.read().accepting
    with listening.connect_once():
        worker.acceptor.resume("overload")
        await asyncio.sleep(0.05)
        assert worker.accepted == []
        worker.acceptor.resume("handshakes")
        await eventually(lambda: worker.has(1))
    assert (worker.paused("overload"), worker.paused("handshakes")) == (1, 1)
    assert worker.accepted[0].getblocking() is False


async def test_a_connection_is_left_to_the_other_and_taken_if_that_does_not_come(
    worker: Worker, listening: Listening
) -> None:
    worker.mine.set_connections(3)
    worker.acceptor.listen(listening, None)
    with listening.connect_once():
        await eventually(lambda: worker.has(1))
    assert worker.metrics.value("headrace_accept_steps_back_total") >= 10


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_want_of_resources_is_said_once_and_ends(
    worker: Worker, listening: Listening, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    worker.acceptor.listen(listening, None)
    with caplog.at_level(logging.INFO):
        for times in (2, 1):
            listening.failures = [code] * times
            with listening.connect_once():
                await eventually(lambda: worker.has(1))
            assert listening.failures == []
            worker.accepted.pop().close()
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert worker.paused("descriptors") == 3
        worker.now += 10.0  # well for a while
        with listening.connect_once():
            await eventually(lambda: worker.has(1))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_a_connection_that_is_gone_already_is_passed_over(
    worker: Worker, listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    listening.failures = [errno.ECONNABORTED, errno.EAGAIN]
    worker.acceptor.listen(listening, None)
    with listening.connect_once():
        await eventually(lambda: worker.has(1))
    assert caplog.records == []


async def test_a_socket_that_is_broken_is_given_up(
    worker: Worker, listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    listening.failures = [errno.EINVAL]
    worker.acceptor.listen(listening, None)
    with listening.connect_once():

        async def tried() -> bool:
            return listening.tries > 0

        await eventually(tried)
        await asyncio.sleep(0.05)
    assert listening.tries == 1
    assert not worker.mine.read().accepting
    assert [record.levelname for record in caplog.records] == ["ERROR"]
