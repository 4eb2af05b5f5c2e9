from __future__ import annotations

import os
import signal

import pytest

from proxy.serve.supervise.successor import Successor


def successor(own_pid: int) -> Successor:
    return Successor((signal.SIGTERM,), own_pid)


def test_one_that_fails_is_told_once_and_another_may_be_started() -> None:
    newer = successor(50)
    newer.pid = 60
    assert newer.reaped({}, none_left=False) is None
    assert newer.reaped({70: 1}, none_left=False) is None
    assert newer.reaped({60: 2}, none_left=False) == 2
    assert newer.pid == 0
    assert newer.reaped({60: 2}, none_left=True) is None


def test_one_that_is_only_starting_is_called_off(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *call: killed.append(call))
    newer = successor(50)
    newer.call_off()
    assert killed == []  # there is none
    newer.pid = 60
    newer.call_off()
    assert killed == [(60, signal.SIGTERM)]
    newer.takes_over(60, "/run/control.sock")
    newer.call_off()
    assert len(killed) == 1


def test_nobody_but_pid_1_stays_for_it() -> None:
    newer = successor(50)
    newer.takes_over(60, "/run/control.sock")
    assert not newer.guarded


def test_pid_1_stays_until_the_last_one_is_gone_and_leaves_as_it_did() -> None:
    newer = successor(1)
    assert not newer.guarded
    newer.takes_over(60, "/run/control.sock")
    assert newer.guarded
    newer.reaped({}, none_left=False)
    newer.reaped({60: 0}, none_left=False)  # which had been replaced itself
    assert newer.guarded
    newer.reaped({80: 3}, none_left=True)
    assert not newer.guarded
    assert newer.exit_code == 3


def test_who_was_killed_is_told_as_shells_do() -> None:
    newer = successor(1)
    newer.takes_over(60, "/run/control.sock")
    newer.reaped({60: -9}, none_left=True)
    assert newer.exit_code == 128 + 9
