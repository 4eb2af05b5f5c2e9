from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import metric_rows
from core.metric_rows import LABEL_CHARACTERS
from core.metrics import Metrics, MetricsBoard

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

DROPPED = "headrace_metrics_dropped_series_total"


def fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def run(work: Callable[[], None]) -> None:
    _, code = os.waitpid(fork(work), 0)
    assert code == 0


def test_a_counter_counts() -> None:
    metrics = Metrics.private()
    counter = metrics.counter("headrace_a_total", "A.")
    counter.inc()
    counter.inc(2.5)
    assert metrics.value("headrace_a_total") == 3.5


def test_a_gauge_rises_and_falls() -> None:
    metrics = Metrics.private()
    gauge = metrics.gauge("headrace_g", "G.", ("pool",)).labels("x")
    gauge.set(5)
    gauge.inc(2)
    gauge.dec()
    assert metrics.value("headrace_g", "x") == 6.0


def test_a_histogram_puts_a_value_on_a_bound_below_it() -> None:
    metrics = Metrics.private()
    histogram = metrics.histogram("headrace_h", "H.", [1, 2, math.inf])
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        histogram.observe(value)
    family = metrics.board.collect()["headrace_h"]
    assert family.entry.bounds == (1.0, 2.0)
    assert family.series[()] == [8.0, 2.0, 2.0, 1.0]
    assert metrics.value("headrace_h") == 5.0


def test_many_observations_of_one_value_are_as_many_observations() -> None:
    metrics = Metrics.private()
    histogram = metrics.histogram("headrace_h", "H.", [1, 2])
    histogram.observe_many(1.5, 3)
    histogram.observe_many(5.0, 1)
    assert metrics.board.collect()["headrace_h"].series[()] == [9.5, 0.0, 3.0, 1.0]


@given(
    st.lists(st.floats(-1e6, 1e6), max_size=30),
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8, unique=True).map(sorted),
)
def test_histogram_buckets_add_up(values: list[float], bounds: list[float]) -> None:
    metrics = Metrics.private()
    histogram = metrics.histogram("headrace_h", "H.", bounds)
    together = metrics.histogram("headrace_t", "T.", bounds)
    together.observe_all(values)
    for value in values:
        histogram.observe(value)
    assert (
        metrics.board.collect()["headrace_t"].series[()][1:]
        == (metrics.board.collect()["headrace_h"].series[()][1:])
    )
    total, *counts = metrics.board.collect()["headrace_h"].series[()]
    assert total == sum(values)
    for index, bound in enumerate(bounds):
        assert sum(counts[: index + 1]) == sum(value <= bound for value in values)
    assert sum(counts) == len(values)


def test_registering_again_returns_the_same_family_and_children() -> None:
    metrics = Metrics.private()
    first = metrics.counter("headrace_a_total", "A.", ("k",))
    assert metrics.counter("headrace_a_total", "Other words.", ("k",)) is first
    assert first.labels("v") is first.labels("v")
    assert first.labels("v") is not first.labels("w")


@pytest.mark.parametrize(
    "register",
    [
        lambda m: m.counter("headrace_a_total", "A.", ("other",)),
        lambda m: m.gauge("headrace_a_total", "A.", ("k",)),
        lambda m: m.counter("headrace_a", "A."),
        lambda m: m.gauge("headrace a", "A."),
        lambda m: m.gauge("headrace_b", "B.", ("bad-label",)),
        lambda m: m.histogram("headrace_h", "H.", []),
        lambda m: m.histogram("headrace_h", "H.", [2, 1]),
    ],
)
def test_a_definition_that_is_wrong_or_contradicts_is_refused(
    register: Callable[[Metrics], object],
) -> None:
    metrics = Metrics.private()
    metrics.counter("headrace_a_total", "A.", ("k",))
    with pytest.raises(ValueError, match=r"headrace|bad-label"):
        register(metrics)


def test_a_labelled_family_must_be_bound_first_and_with_the_right_number() -> None:
    family = Metrics.private().counter("headrace_a_total", "A.", ("k",))
    with pytest.raises(TypeError, match="labels"):
        family.inc()
    with pytest.raises(ValueError, match="has the labels"):
        family.labels("a", "b")


def test_too_many_label_sets_become_other() -> None:
    board = MetricsBoard(1, series_cap=3)
    metrics = board.for_worker(0)
    family = metrics.counter("headrace_a_total", "A.", ("k", "l"))
    for index in range(10):
        family.labels(str(index), "x").inc()
    assert metrics.value("headrace_a_total", "2", "x") == 1.0
    assert metrics.value("headrace_a_total", "other", "other") == 7.0
    assert len(board.collect()["headrace_a_total"].series) == 4


def test_label_values_are_cut_and_made_valid() -> None:
    metrics = Metrics.private()
    family = metrics.counter("headrace_a_total", "A.", ("k",))
    family.labels("x" * 1000).inc()
    family.labels("\ud800").inc()
    assert set(metrics.board.collect()["headrace_a_total"].series) == {
        ("x" * LABEL_CHARACTERS,),
        ("?",),
    }


def test_a_full_row_warns_once_counts_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    metrics = MetricsBoard(1, series_cap=10_000).for_worker(0)
    bounds = [float(bound) for bound in range(1000)]
    family = metrics.histogram("headrace_h", "H.", bounds, ("k",))
    with caplog.at_level(logging.WARNING):
        for index in range(20):
            family.labels(str(index)).observe(1.0)
    kept = len(metrics.board.collect()["headrace_h"].series)
    assert kept == metric_rows.VALUE_SLOTS // 1002
    assert metrics.value(DROPPED) == 20 - kept
    assert len(caplog.records) == 1


def test_a_full_directory_is_a_full_row_too() -> None:
    metrics = MetricsBoard(1, series_cap=10_000).for_worker(0)
    family = metrics.counter("headrace_a_total", "A.", ("k",))
    for index in range(6000):
        family.labels(f"{index:0128}").inc()
    kept = len(metrics.board.collect()["headrace_a_total"].series)
    assert 3000 < kept < 6000
    assert metrics.value(DROPPED) == 6000 - kept


# Several processes


def test_workers_are_summed_and_dead_ones_folded() -> None:
    board = MetricsBoard(2)

    def work(index: int, label: str) -> None:
        metrics = board.for_worker(index)
        metrics.counter("headrace_a_total", "A.", ("k",)).labels(label).inc(2)
        metrics.counter("headrace_a_total", "A.", ("k",)).labels("both").inc()
        metrics.gauge("headrace_g", "G.").set(4)
        metrics.histogram("headrace_h", "H.", [0.5]).observe(index)

    read = Metrics.value
    run(lambda: work(0, "x"))
    run(lambda: work(1, "y"))
    for folded in (None, 0, 1):
        if folded is not None:
            board.fold(folded)
        supervisor = board.supervisor
        assert read(supervisor, "headrace_a_total", "x") == 2.0
        assert read(supervisor, "headrace_a_total", "y") == 2.0
        assert read(supervisor, "headrace_a_total", "both") == 2.0
        assert board.collect()["headrace_h"].series[()] == [1.0, 1.0, 1.0]
    assert read(board.supervisor, "headrace_g") == 0.0
    run(lambda: work(0, "x"))
    assert read(board.supervisor, "headrace_a_total", "x") == 4.0
    assert read(board.supervisor, "headrace_g") == 4.0


def test_a_row_that_was_not_folded_is_not_given_to_another_process() -> None:
    board = MetricsBoard(1)
    run(lambda: board.for_worker(0).counter("headrace_a_total", "A.").inc())
    with pytest.raises(RuntimeError, match="another process"):
        board.for_worker(0)
    board.fold(0)
    assert board.for_worker(0).value("headrace_a_total") == 1.0


def test_nothing_is_lost_or_counted_twice_when_a_worker_is_killed_amid_increments() -> None:
    board = MetricsBoard(1)
    told, tell = os.pipe()
    total = 0
    for _ in range(5):

        def work() -> None:
            metrics = board.for_worker(0)
            counter = metrics.counter("headrace_a_total", "A.", ("k",)).labels("x")
            histogram = metrics.histogram("headrace_h", "H.", [1.0])
            while True:
                counter.inc()
                os.write(tell, b".")  # told only after the increment
                histogram.observe(0.5)

        pid = fork(work)
        seen = 0
        while seen < 500:
            seen += len(os.read(told, 500))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.set_blocking(told, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                seen += len(os.read(told, 65536))
        os.set_blocking(told, True)
        before = board.collect()
        board.fold(0)
        after = board.collect()
        assert before["headrace_a_total"].series == after["headrace_a_total"].series
        assert before["headrace_h"].series == after["headrace_h"].series
        total += seen
        # At most one increment per life was made and not yet told of.
        counted = board.supervisor.value("headrace_a_total", "x")
        assert total <= counted <= total + 1
        total = int(counted)
        assert total - 5 <= board.supervisor.value("headrace_h") <= total
    os.close(told)
    os.close(tell)


def test_a_reader_sees_whole_series_while_the_writer_appends() -> None:
    board = MetricsBoard(1, series_cap=3000)
    begin_read, begin = os.pipe()

    def work() -> None:
        os.read(begin_read, 1)
        family = board.for_worker(0).counter("headrace_a_total", "A.", ("k",))
        for index in range(3000):
            family.labels(f"label {index}").inc()

    pid = fork(work)
    os.write(begin, b".")
    seen: list[int] = []
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        family = board.collect().get("headrace_a_total")
        series = family.series if family else {}
        assert list(series) == [(f"label {index}",) for index in range(len(series))]
        assert all(value == [1.0] for value in list(series.values())[:-1])
        seen.append(len(series))
    assert seen == sorted(seen)
    assert len(board.collect()["headrace_a_total"].series) == 3000
    os.close(begin_read)
    os.close(begin)


def test_a_reader_never_sees_a_fold_half_done() -> None:
    board = MetricsBoard(1)
    readings: list[float] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            readings.append(board.supervisor.value("headrace_a_total", "5"))

    def live() -> None:
        family = board.for_worker(0).counter("headrace_a_total", "A.", ("k",))
        for index in range(50):
            family.labels(str(index)).inc()

    live()
    reader = threading.Thread(target=read)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    reader.start()
    for _ in range(40):
        seen = len(readings)
        board.fold(0)
        live()
        while len(readings) < seen + 2:
            time.sleep(0)
    stop.set()
    reader.join()
    sys.setswitchinterval(interval)
    assert len(set(readings)) > 20
    assert readings == sorted(readings)
    assert board.supervisor.value("headrace_a_total", "5") == 41.0


def test_a_fold_of_a_contradicting_definition_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    board = MetricsBoard(1)
    board.supervisor.gauge("headrace_a_total", "A.")
    run(lambda: board.for_worker(0).counter("headrace_a_total", "A.").inc())
    board.fold(0)
    assert "already defined otherwise" in caplog.text
    assert board.for_worker(0).row.used_slots == 1


def test_a_removed_series_is_shown_no_more_and_its_holder_changes_nothing() -> None:
    metrics = Metrics.private()
    gauge = metrics.gauge("headrace_g", "G.", ("replica",))
    seconds = metrics.histogram("headrace_h", "H.", (1.0,), ("replica",))
    held, observe = gauge.labels("a"), seconds.labels("a")
    held.set(7)
    observe.observe(0.5)
    gauge.remove("a")
    seconds.remove("a")
    gauge.remove("never seen")
    assert not {"headrace_g", "headrace_h"} & metrics.board.collect().keys()
    later, buckets = gauge.labels("b"), seconds.labels("b")
    later.set(1)
    held.set(9)
    observe.observe(0.5)
    assert (metrics.value("headrace_g", "a"), metrics.value("headrace_g", "b")) == (0.0, 1.0)
    assert metrics.value("headrace_h", "b") == 0.0
    buckets.observe(0.5)
    again = gauge.labels("a")
    assert again is not held
    again.set(2)
    assert metrics.value("headrace_g", "a") == 2.0


def test_names_that_come_and_go_never_fill_a_family() -> None:
    metrics = MetricsBoard(1, series_cap=3).for_worker(0)
    counter = metrics.counter("headrace_a_total", "A.", ("replica",))
    for number in range(50):
        counter.labels(str(number)).inc()
        assert metrics.value("headrace_a_total", str(number)) == 1.0
        counter.remove(str(number))
    counter.labels("other").inc()
    counter.remove("other")  # it stands for many
    assert metrics.value("headrace_a_total", "other") == 1.0


def test_a_reader_never_takes_one_series_for_another_that_came_in_its_place() -> None:
    board = MetricsBoard(1)

    def work() -> None:
        counter = board.for_worker(0).counter("headrace_a_total", "A.", ("k",))
        for number in itertools.count():
            name = str(number % 7)
            counter.labels(name).inc(number % 7)
            counter.remove(name)

    pid = fork(work)
    readings = 0
    try:
        while readings < 1000:
            family = board.collect().get("headrace_a_total")
            for (name,), (value,) in family.series.items() if family is not None else ():
                assert value in (0.0, float(name))
                readings += 1
            assert os.waitpid(pid, os.WNOHANG)[0] == 0
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
