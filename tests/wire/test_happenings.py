"""Commands at set instants, beside a run."""

from __future__ import annotations

import os
import time
from pathlib import Path

from loadtest.happenings import Happenings
from loadtest.scenario import Happening


def test_they_happen_in_their_order_and_failures_are_noted(tmp_path: Path) -> None:
    planned = [Happening(at_s=0.02, do="bad"), Happening(at_s=0.01, do="good")]
    log = tmp_path / "log"
    commands = {"good": f"echo one >>{log}", "bad": f"echo two >>{log}; exit 3"}
    with Happenings(planned, commands) as events:
        began_at = time.perf_counter()
        events.begin(began_at)
        while len(events.done) < 2:
            time.sleep(0.001)
    assert [(each.name, each.problem) for each in events.done] == [
        ("good", ""),
        ("bad", "status 3"),
    ]
    assert log.read_text() == "one\ntwo\n"
    assert events.done[0].at >= began_at + 0.01


def test_the_end_of_a_run_waits_for_no_command(tmp_path: Path) -> None:
    planned = [Happening(at_s=0, do="long"), Happening(at_s=3600, do="late")]
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    os.mkfifo(gate)
    commands = {"long": f"touch {begun}; cat {gate}", "late": "true"}
    with Happenings(planned, commands) as events:
        events.begin(time.perf_counter())
        while not begun.exists():
            time.sleep(0.001)
    assert [each.problem for each in events.done] == ["it had not ended when the run did"]
    gate.write_bytes(b"")  # the command goes on, and ends with this


def test_nothing_planned_starts_nothing() -> None:
    with Happenings([], {}) as events:
        events.begin(0.0)
    assert events.done == []
