"""What is read of processes and metrics."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from loadtest.watch import Watch, family, sums

TEXT = """
# TYPE headrace_tasks gauge
headrace_tasks{worker="0"} 3
headrace_tasks{worker="1"} 4 1796051236
headrace_tasks_total 100
plain 2.5
odd{x="a b"} NaN?
"""


def test_a_metric_is_added_up_over_its_labels() -> None:
    assert sums(TEXT, ["headrace_tasks", "plain", "odd", "absent"]) == {
        "headrace_tasks": 7,
        "plain": 2.5,
    }


def test_what_this_process_uses() -> None:
    watch = Watch([os.getpid()])
    with open(os.devnull) as _:
        watch.look(1.0)
    watch.look(2.0)
    found = {seen.what: list(seen.values) for seen in watch.seen if str(os.getpid()) in seen.of}
    assert set(found) == {"rss", "descriptors", "threads", "cpu"}
    assert found["rss"][0] > 1 << 20
    assert found["descriptors"][0] == found["descriptors"][1] + 1
    assert 0 < found["cpu"][0] <= found["cpu"][1]


def test_descendants_count_and_one_that_ends_is_noted() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in family(os.getpid())
        watch = Watch([os.getpid(), child.pid])
        watch.look(1.0)
    finally:
        child.communicate(b"\n")
    watch.look(2.0)
    seen = next(each for each in watch.seen if each.of == f"process {child.pid}")
    assert list(seen.at) == [1.0]
    assert watch.notes == [f"process {child.pid} ended"]


def test_a_process_that_does_not_run() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(ProcessLookupError):
        Watch([child.pid])
