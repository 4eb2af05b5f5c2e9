"""What a worker does at each level, with figures and ticks by hand."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from core.load_board import LoadBoard
from core.metrics import Metrics
from proxy.config import LagConfig, ListenLimits, OverloadConfig, SharesConfig
from proxy.flow import Watchdog
from proxy.listen.listener import Listener
from proxy.overload import shedding
from proxy.overload.admission import Admission
from proxy.overload.level import RELIEF_S, Level
from proxy.overload.shedding import LOOK_S, Shedding

SHARES = SharesConfig(close=0.8, refuse=0.9, pause=0.95)


class FakeListener:
    def __init__(self) -> None:
        self.told: list[str] = []
        self.shut = 0
        self.left = 0

    def pause(self, reason: str) -> None:
        self.told.append(f"pause {reason}")

    def resume(self, reason: str) -> None:
        self.told.append(f"resume {reason}")

    def shut_idle(self, most: int) -> None:
        self.shut += most


class Setting:
    """Shedding with `memory` as it is set, and every tick later by `late_s`."""

    def __init__(self, **settings: Any) -> None:
        self.metrics = Metrics.private()
        self.board = LoadBoard(1)
        self.admission = Admission(ListenLimits(), self.metrics)
        self.listener = FakeListener()
        self.now = 100.0
        self.memory = 0.1
        off: dict[str, Any] = {"descriptors": "off", "memory": "off", "loop_lag_s": "off"}
        self.shedding = Shedding(
            OverloadConfig(**(off | settings)),
            listener=cast(Listener, self.listener),
            admission=self.admission,
            board=self.board,
            index=0,
            watchdog=Watchdog(),
            metrics=self.metrics,
        )
        self.shedding._resources.memory = lambda: self.memory  # type: ignore[method-assign]

    def pass_s(self, seconds: float, late_s: float = 0.0) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.1 + late_s
            self.shedding.tick(self.now)

    @property
    def level(self) -> Level:
        return self.admission.level

    def workers(self, level: str) -> float:
        return self.metrics.value("headrace_overloaded_workers", level)


async def test_each_level_and_the_way_back(caplog: pytest.LogCaptureFixture) -> None:
    setting = Setting(memory=SHARES)
    with caplog.at_level(logging.INFO):
        setting.pass_s(2.0)
        assert setting.level == Level.NORMAL
        setting.memory = 0.85
        setting.pass_s(LOOK_S)
        assert (setting.level, setting.admission.keep_alive) == (Level.CLOSE, False)
        assert setting.listener.shut > 0
        assert setting.listener.told == ["resume overload"]
        setting.memory = 0.99
        setting.pass_s(LOOK_S)
        assert setting.level == Level.PAUSE
        assert setting.listener.told[-1] == "pause overload"
        assert [setting.workers(level) for level in ("close", "refuse", "pause")] == [1, 1, 1]
        setting.memory = 0.1
        setting.pass_s(4 * (RELIEF_S + LOOK_S))
        assert (setting.level, setting.admission.keep_alive) == (Level.NORMAL, True)
        assert setting.listener.told[-1] == "resume overload"
        assert [setting.workers(level) for level in ("close", "refuse", "pause")] == [0, 0, 0]
    assert len(caplog.records) == 5  # up twice, down three times, and nothing in between
    changes = "headrace_overload_changes_total"
    assert setting.metrics.value(changes, "pause", "memory") == 1
    assert setting.metrics.value(changes, "normal", "relief") == 1


async def test_lateness_sheds_requests_and_keeps_connections() -> None:
    setting = Setting(loop_lag_s=LagConfig(refuse=0.25, pause=0.9))
    setting.pass_s(5.0)
    setting.pass_s(5.0, late_s=5.0)  # once
    assert setting.level == Level.NORMAL
    setting.pass_s(20.0, late_s=0.4)
    assert setting.level == Level.REFUSE
    assert setting.admission.keep_alive
    assert setting.listener.shut == 0
    setting.pass_s(20.0)
    assert setting.level == Level.NORMAL


async def test_other_settings_hold_at_the_next_look() -> None:
    setting = Setting()
    setting.memory = 0.99
    setting.pass_s(2.0)
    assert setting.level == Level.NORMAL
    setting.shedding.settings = OverloadConfig(descriptors="off", memory=SHARES, loop_lag_s="off")
    setting.pass_s(LOOK_S)
    assert setting.level == Level.PAUSE


async def test_its_memory_is_on_the_board() -> None:
    setting = Setting()
    setting.pass_s(LOOK_S)
    assert setting.board.resident_bytes() > 1_000_000


async def test_memory_is_given_back_after_many_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[float] = []
    setting = Setting()
    monkeypatch.setattr(shedding, "give_back_memory", lambda: given.append(setting.now))
    setting.listener.left = 499
    setting.pass_s(2.0)
    assert given == []
    setting.listener.left = 500
    setting.pass_s(2.0)
    assert len(given) == 1
