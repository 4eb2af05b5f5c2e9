"""The supervisor with real processes: starting, dying, ending."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]


def ask(port: int) -> tuple[int, int]:
    """The index and pid of the worker behind `port`; waits for it to be there."""
    give_up_at = time.monotonic() + 10
    while True:
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection(("127.0.0.1", port), 10) as client,
        ):
            client.sendall(b"who\n")
            if line := client.makefile().readline():
                index, pid = line.split()
                return int(index), int(pid)
        assert time.monotonic() < give_up_at


def is_alive(pid: int) -> bool:
    """A zombie that its new parent has yet to reap is not."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"
    return False


def gone(pid: int) -> bool:
    give_up_at = time.monotonic() + 10
    while is_alive(pid):
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_workers_start_serve_and_drain(run_stub: Run, number: signal.Signals) -> None:
    stub = run_stub("plain", 2)
    ports = stub.ports()
    assert "listening on http://127.0.0.1:" in stub.said[-1]
    assert "with 2 workers" in stub.said[-1]
    answers = [ask(port) for port in ports]
    assert [index for index, _ in answers] == [0, 1]
    pids = {pid for _, pid in answers}
    assert len(pids | {stub.process.pid}) == 3
    stub.stop(number)
    assert stub.ended() == 0
    said = "\n".join(stub.said)
    assert "worker 0 drained" in said
    assert "worker 1 drained" in said
    assert not any(is_alive(pid) for pid in pids)
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 1).close()


def test_a_killed_worker_is_replaced_and_the_others_go_on(run_stub: Run) -> None:
    stub = run_stub("plain", 2)
    ports = stub.ports()
    (_, victim), (_, other) = ask(ports[0]), ask(ports[1])
    with socket.create_connection(("127.0.0.1", ports[1])) as held:
        os.kill(victim, signal.SIGKILL)
        stub.wait_for("folded 0")
        stub.wait_for(rf"worker 0 \(pid {victim}\) ended with SIGKILL .* starts in 0.1 s")
        index, successor = ask(ports[0])
        assert (index, successor != victim) == (0, True)
        held.sendall(b"still there\n")
        assert held.makefile().readline().split() == ["1", str(other)]
    stub.stop()
    assert stub.ended() == 0


def test_a_worker_that_cannot_start_is_tried_ever_later_and_loudly(run_stub: Run) -> None:
    stub = run_stub("crash-loop", 2)
    for delay in ("0.1", "0.2", "0.4"):
        stub.wait_for("RuntimeError: broken on purpose")
        line = stub.wait_for("worker 0 .* ended")
        assert re.search(rf"exit status 1 after .* starts in {delay} s", line)
    stub.stop()
    assert stub.ended() == 0
    assert not any("listening on" in line for line in stub.said)


def test_a_configuration_that_workers_refuse_ends_everything(run_stub: Run) -> None:
    stub = run_stub("bad-config", 2)
    assert stub.ended() == 2
    assert "headrace: $.models: cannot be used" in stub.said
    assert "headrace: $.replicas: neither" in stub.said
    assert not any("Traceback" in line for line in stub.said)


@pytest.mark.parametrize("second_signal", [True, False])
def test_workers_that_do_not_end_are_killed(run_stub: Run, second_signal: bool) -> None:
    """At once when asked twice, otherwise when the grace period is over (0 s, and a margin)."""
    stub = run_stub("stubborn", 1, drain_s=3600.0 if second_signal else 0.0)
    _, pid = ask(stub.ports()[0])
    stub.stop()
    stub.wait_for("stopping")
    if second_signal:
        stub.stop()
    stub.wait_for("killing 1 workers")
    assert stub.ended() == 0
    assert not is_alive(pid)


def test_workers_end_when_the_supervisor_was_killed(run_stub: Run) -> None:
    stub = run_stub("plain", 2)
    pids = [ask(port)[1] for port in stub.ports()]
    stub.stop(signal.SIGKILL)
    assert all(gone(pid) for pid in pids)


def test_a_hangup_is_survived(run_stub: Run) -> None:
    stub = run_stub("plain", 1)
    port = stub.ports()[0]
    before = ask(port)
    stub.stop(signal.SIGHUP)
    stub.wait_for("SIGHUP is ignored")
    assert ask(port) == before
    stub.stop()
    assert stub.ended() == 0
