"""A worker's line to a core that does not read, dies, and comes back."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import base_config, parse

from core.metrics import Metrics
from core.shared_memory import WorkerState
from proxy.serve import host_memory
from proxy.serve.core_link import CoreLink
from proxy.serve.host_memory import HostMemory
from proxy.serve.prepared import Prepared, Shared, prepare
from routing import announcements
from routing.index_keeper import IndexKeeper, Room


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Prepared]:
    monkeypatch.setattr(announcements, "_MOST_WAITING", 100_000)
    monkeypatch.setattr(host_memory, "_BUFFER_BYTES", 50_000)
    config = parse(base_config(["http://127.0.0.1:9"], workers=2), tmp_path)
    memory = HostMemory.make(config)
    assert memory is not None
    yield prepare(config, Shared.make(config.workers, host=memory))
    memory.close()


class Core:
    """Reads when told to."""

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self._line: socket.socket = memory.from_worker(1)
        self._start()

    def _start(self) -> None:
        memory = self._memory
        self.keeper = IndexKeeper(memory.masks, 10**6, memory.lives.of, memory.core_life, 2)
        self.keeper.use({"r0": Room(0, 10**6)}, 10**6)
        self.keeper.adopt()

    def die_and_return(self) -> None:
        self._memory.core_died()
        self._start()

    def read(self) -> int:
        count = 0
        try:
            while True:
                mark = self.keeper.hear(1, self._line.recv(1 << 17), 0.0)
                count += 1
                if mark is not None:
                    self._memory.heard[1] = mark
        except BlockingIOError:
            return count

    async def read_until(self, on_their_way: int) -> None:
        end_at = time.monotonic() + 10
        while self.keeper.on_their_way != on_their_way:
            assert time.monotonic() < end_at, self.keeper
            self.read()
            await asyncio.sleep(0.005)

    def close(self) -> None:
        self._line.close()


async def test_a_core_that_does_not_read_holds_nobody_up(prepared: Prepared) -> None:
    memory = prepared.shared.host
    assert memory is not None
    metrics = Metrics.private()
    link, core = CoreLink(memory, prepared, 1, metrics), Core(memory)
    index = link.host.index
    target = index.add(10**6, "r0")
    prompts = [[*range(399), last] for last in range(1000, 1100)]
    for prompt in prompts:
        index.expect(target, prompt)
        await asyncio.sleep(0)
    link.review()
    assert metrics.value("headrace_announcements_lost_total") >= 1
    assert index.match(prompts[-1], target.bit) == [(target.bit, 400)]
    await core.read_until(len(prompts))
    for prompt in prompts[1:]:
        index.confirm(target, prompt)
    await core.read_until(1)
    assert index.match(prompts[5], target.bit) == [(target.bit, 400)]
    link.close()
    core.close()


async def test_a_core_that_died_hears_all_anew_and_is_missed_meanwhile(prepared: Prepared) -> None:
    memory = prepared.shared.host
    assert memory is not None
    metrics = Metrics.private()
    link, core = CoreLink(memory, prepared, 1, metrics), Core(memory)

    def degraded() -> float:
        link.review()
        return metrics.value("headrace_degraded", "1")

    assert degraded() == 1
    memory.core_state.publish(WorkerState.READY, 1, time.monotonic())
    assert degraded() == 0
    others = memory.ledger.place(0)
    others[2] = others[1] = 7  # as told of another gateway, and by a worker
    memory.core_state.beat(time.monotonic() - 60)
    assert degraded() == 1
    assert others.tolist() == [0, 7] + [0] * 7
    others[1] = 0
    index = link.host.index
    target = index.add(1000, "r0")
    index.expect(target, [1, 2, 3])
    index.expect(target, [1, 9])
    await core.read_until(2)
    index.confirm(target, [1, 2, 3])
    await asyncio.sleep(0.01)
    core.die_and_return()  # that was said to the one before
    core.read()
    assert core.keeper.ignored >= 1
    assert degraded() == 1
    await core.read_until(1)
    assert index.match([1, 9], target.bit) == [(target.bit, 2)]
    link.close()
    core.close()
