"""The lives of snapshots, with replicas that nobody starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from core.errors import ConfigError
from core.loading import convert
from core.metrics import Metrics
from proxy.config import ListenLimits
from proxy.flow import Watchdog
from proxy.overload.admission import Admission
from proxy.serve import snapshots as module
from proxy.serve.config import Config
from proxy.serve.prepared import prepare
from proxy.serve.replicas import Replicas
from proxy.serve.snapshot import Snapshot, Surroundings
from proxy.serve.snapshots import Snapshots
from proxy.token_gaps import GapMeters
from proxy.turns import Turns


class Bench:
    """`log(name)` is a configuration that differs in its access log, which is easy to observe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.metrics = Metrics.private()
        prepared = prepare(self.log("first"))
        self.replicas = Replicas(prepared, self.metrics, lambda: 1000.0)
        around = Surroundings(
            index=0,
            metrics=self.metrics,
            clock=lambda: 1000.0,
            watchdog=Watchdog(),
            admission=Admission(ListenLimits(), self.metrics),
            replicas=self.replicas,
            turns=Turns(),
            gaps=GapMeters(self.metrics),
        )
        self.snapshots = Snapshots(prepared, around)

    def log(self, name: str, **sections: Any) -> Config:
        document = {
            "listen": {"addresses": ["127.0.0.1:8080"], "tls": "off"},
            "auth": "none",
            "workers": 1,
            "models": [{"name": "m"}],
            "replicas": [{"url": "http://r0", "model": "m"}],
            "log": {"access": str(self._folder / name)},
            **sections,
        }
        return convert(document, Config, "/")

    async def stage(self, config: Config) -> None:
        previous = self.snapshots.current.prepared
        await self.snapshots.stage(prepare(config, previous=previous))

    async def change(self, config: Config) -> Snapshot:
        """Returns the one that was in use."""
        before = self.snapshots.current
        await self.stage(config)
        assert self.snapshots.commit()
        return before

    @property
    def open(self) -> float:
        return self.metrics.value("headrace_snapshots_open")


def is_open(snapshot: Snapshot) -> bool:
    return snapshot.observer.log._sink is not None


def begin(snapshot: Snapshot) -> None:
    """An exchange, as far as it concerns its snapshot."""
    snapshot.pipeline.in_flight += 1


def end(snapshot: Snapshot) -> None:
    snapshot.pipeline.in_flight -= 1
    if not snapshot.pipeline.in_flight and snapshot.pipeline.on_quiet is not None:
        snapshot.pipeline.on_quiet()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    yield made
    await made.snapshots.close()


async def test_without_exchanges_the_old_one_ends_in_the_next_pass(bench: Bench) -> None:
    before = await bench.change(bench.log("second"))
    assert (bench.open, is_open(before)) == (2, True)
    await asyncio.sleep(0)
    assert (bench.open, is_open(before), is_open(bench.snapshots.current)) == (1, False, True)
    assert bench.metrics.value("headrace_config_generation", "0") == 2


async def test_an_exchange_that_has_yet_to_take_its_first_step_counts(bench: Bench) -> None:
    before = bench.snapshots.current
    await bench.stage(bench.log("second"))
    asyncio.get_running_loop().call_soon(begin, before)
    bench.snapshots.commit()
    for _ in range(3):
        await asyncio.sleep(0)
    assert is_open(before)
    end(before)
    assert not is_open(before)


async def test_each_lives_as_long_as_its_last_exchange(bench: Bench) -> None:
    opened = []
    for name in ("second", "third", "fourth"):
        begin(bench.snapshots.current)
        begin(bench.snapshots.current)
        opened.append(await bench.change(bench.log(name)))
        await asyncio.sleep(0)
    assert bench.open == 4
    for index in (1, 0, 2):
        end(opened[index])
        assert is_open(opened[index])
        end(opened[index])
        assert not is_open(opened[index])
    assert bench.open == 1


async def test_what_a_later_one_has_too_stays_open(bench: Bench) -> None:
    begin(bench.snapshots.current)
    first = await bench.change(bench.log("first", drain_s=1.0))
    second = await bench.change(bench.log("first", drain_s=2.0))
    await asyncio.sleep(0)
    third = bench.snapshots.current
    assert first.observer is second.observer is third.observer
    end(first)
    assert (bench.open, is_open(third)) == (1, True)
    begin(third)
    await bench.change(bench.log("other"))
    end(third)
    assert not is_open(first)


async def test_what_was_staged_is_closed_when_dropped_and_when_replaced(bench: Bench) -> None:
    current = bench.snapshots.current
    staged = []
    for name in ("second", "third"):
        await bench.stage(bench.log(name))
        assert bench.snapshots._staged is not None
        staged.append(bench.snapshots._staged.snapshot)
    assert [is_open(snapshot) for snapshot in staged] == [False, True]
    bench.snapshots.drop()
    assert [is_open(snapshot) for snapshot in staged] == [False, False]
    assert not bench.snapshots.commit()
    assert bench.snapshots.current is current
    assert (bench.open, is_open(current)) == (1, True)
    await bench.stage(bench.log("first", drain_s=1.0))
    bench.snapshots.drop()
    assert is_open(current)


async def test_a_fault_while_staging_leaves_nothing(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    config = bench.log("folder/log")
    with pytest.raises(ConfigError, match="folder"):
        await bench.stage(config)
    assert not bench.snapshots.commit()
    folder.mkdir()
    await bench.change(config)


async def test_the_replicas_of_a_dropped_model_go_with_the_last_exchange(bench: Bench) -> None:
    begin(bench.snapshots.current)
    before = await bench.change(
        bench.log("x", models=[{"name": "n"}], replicas=[{"url": "http://r1", "model": "n"}])
    )
    assert bench.replicas.registry.models() == ("n", "m")
    await bench.stage(bench.log("y"))
    end(before)
    assert bench.replicas.registry.models() == ("n", "m")
    bench.snapshots.drop()
    assert bench.replicas.registry.models() == ("n",)


async def test_staging_waits_for_readiness_while_the_current_one_is_ready(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.replicas.registry.member("r0:80").succeeded()
    assert bench.snapshots.unready() == []
    two = [{"url": f"http://r{n}", "model": name} for n, name in enumerate("mn")]
    config = bench.log("x", models=[{"name": "m"}, {"name": "n"}], replicas=two)
    staging = asyncio.ensure_future(bench.stage(config))
    for _ in range(200):
        await asyncio.sleep(0)
        if bench.snapshots._staged is not None:
            break
    staged = bench.snapshots._staged
    assert staged is not None
    assert not staging.done()
    member = staged.replicas.roster.entries["r1:80"].member
    member.succeeded()
    member.probed_once = True
    monkeypatch.setattr(module, "_LOOK_S", 0.0)
    await staging
    assert "not ready" not in caplog.text
    bench.snapshots.commit()
    monkeypatch.setattr(module, "READY_S", 0.0)
    later = [*two, {"url": "http://r2", "model": "m"}]
    await bench.stage(bench.log("x", models=[{"name": "m"}, {"name": "n"}], replicas=later))
    assert "used though not ready: replica r2:80: not asked yet" in caplog.text


async def test_staging_that_is_cancelled_leaves_nothing(bench: Bench) -> None:
    bench.replicas.registry.member("r0:80").succeeded()
    two = [{"url": f"http://r{n}", "model": "m"} for n in range(2)]
    staging = asyncio.ensure_future(bench.stage(bench.log("x", replicas=two)))
    while bench.snapshots._staged is None:
        await asyncio.sleep(0)
    snapshot = bench.snapshots._staged.snapshot
    staging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await staging
    assert not is_open(snapshot)
    assert not bench.snapshots.commit()
