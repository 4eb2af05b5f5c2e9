"""The supervisor with real processes: starting, dying, ending."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration of the stub."""
    path = tmp_path / "words"
    path.write_text("ok")
    monkeypatch.setenv("STUB_WORDS", str(path))
    return path


def ask(port: int) -> tuple[int, int]:
    """The index and pid of the worker behind `port`; waits for it to be there."""
    index, pid, _ = told(port)
    return int(index), int(pid)


def word(port: int) -> str:
    """The configuration of the worker behind `port`."""
    return told(port)[2]


def told(port: int) -> list[str]:
    give_up_at = time.monotonic() + 30
    while True:
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection(("127.0.0.1", port), 10) as client,
        ):
            client.sendall(b"who\n")
            if line := client.makefile().readline():
                return line.split()
        assert time.monotonic() < give_up_at


def is_alive(pid: int) -> bool:
    """A zombie that its new parent has yet to reap is not."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"
    return False


def gone(pid: int) -> bool:
    give_up_at = time.monotonic() + 30
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
        assert held.makefile().readline().split() == ["1", str(other), "ok"]
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


@pytest.mark.parametrize("mode", ["core-crash", "core-config"])
def test_workers_serve_and_reload_though_the_core_cannot_start(
    run_stub: Run, words: Path, mode: str
) -> None:
    stub = run_stub(mode, 2)
    ports = stub.ports()
    assert [ask(port)[0] for port in ports] == [0, 1]
    said = [re.search(r"core \(pid \d+\) ended .* starts in", line) for line in stub.said]
    if not any(said):
        stub.wait_for(r"core \(pid \d+\) ended .* starts in")
    words.write_text("new")
    stub.stop(signal.SIGHUP)
    stub.wait_for("reloaded")
    assert [word(port) for port in ports] == ["new", "new"]
    stub.stop()
    assert stub.ended() == 0


def test_a_core_that_hangs_holds_up_no_end(run_stub: Run) -> None:
    stub = run_stub("core", 1, drain_s=3600.0)
    _, pid = ask(stub.ports()[0])
    children = Path(f"/proc/{stub.process.pid}/task/{stub.process.pid}/children").read_text()
    (core,) = {int(child) for child in children.split()} - {pid}
    os.kill(core, signal.SIGSTOP)
    stub.stop()
    stub.wait_for("killing 1 process")
    assert stub.ended() == 0
    assert not is_alive(core)


@pytest.mark.parametrize("second_signal", [True, False])
def test_workers_that_do_not_end_are_killed(run_stub: Run, second_signal: bool) -> None:
    """At once when asked twice, otherwise when the grace period is over (0 s, and a margin)."""
    stub = run_stub("stubborn", 1, drain_s=3600.0 if second_signal else 0.0)
    _, pid = ask(stub.ports()[0])
    stub.stop()
    stub.wait_for("stopping")
    if second_signal:
        stub.stop()
    stub.wait_for("killing 1 process")
    assert stub.ended() == 0
    assert not is_alive(pid)


def test_workers_end_when_the_supervisor_was_killed(run_stub: Run) -> None:
    stub = run_stub("plain", 2)
    pids = [ask(port)[1] for port in stub.ports()]
    stub.stop(signal.SIGKILL)
    assert all(gone(pid) for pid in pids)


def test_a_hangup_reloads(run_stub: Run, words: Path) -> None:
    stub = run_stub("plain", 2)
    ports = stub.ports()
    before = [ask(port) for port in ports]
    words.write_text("new")
    stub.stop(signal.SIGHUP)
    stub.wait_for("counted applied")
    stub.wait_for(r"reloaded \(SIGHUP\), generation 2; changed: \$\.word")
    assert [word(port) for port in ports] == ["new", "new"]
    assert [ask(port) for port in ports] == before
    # Who is forked later starts from it, and knows.
    os.kill(before[0][1], signal.SIGKILL)
    stub.wait_for("worker 0 was told: applied 2")
    assert word(ports[0]) == "new"
    stub.stop()
    assert stub.ended() == 0


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("bad", r"\$\.word: bad; \$\.word: really"),
        ("refused", r"\$\.word: worker 1 does not like it; \$\.word: not at all"),
        ("deadly", "worker 1 died while it prepared the new configuration"),
    ],
)
def test_what_one_cannot_use_nobody_uses(run_stub: Run, words: Path, bad: str, reason: str) -> None:
    stub = run_stub("plain", 2)
    ports = stub.ports()
    words.write_text(bad)
    stub.stop(signal.SIGHUP)
    stub.wait_for("counted refused")
    stub.wait_for(rf"reload refused \(SIGHUP\), generation 1 goes on: {reason}")
    assert [word(port) for port in ports] == ["ok", "ok"]
    words.write_text("good")
    stub.stop(signal.SIGHUP)
    stub.wait_for("reloaded")
    assert [word(port) for port in ports] == ["good", "good"]
    stub.stop()
    assert stub.ended() == 0


def test_who_cannot_commit_makes_room_for_one_that_starts_with_it(
    run_stub: Run, words: Path
) -> None:
    stub = run_stub("plain", 2)
    ports = stub.ports()
    first = ask(ports[1])
    words.write_text("fatal")
    stub.stop(signal.SIGHUP)
    stub.wait_for("RuntimeError: cannot commit")
    stub.wait_for("worker 1 drained")
    stub.wait_for("reloaded")
    assert [word(port) for port in ports] == ["fatal", "fatal"]
    assert ask(ports[1]) != first
    stub.stop()
    assert stub.ended() == 0


def test_what_is_asked_for_meanwhile_is_one_more_reload(run_stub: Run, words: Path) -> None:
    words.write_text("slow")
    stub = run_stub("plain", 2)
    port = stub.ports()[0]
    stub.stop(signal.SIGHUP)
    time.sleep(0.1)  # the workers are at it
    words.write_text("last")
    for _ in range(5):
        stub.stop(signal.SIGHUP)
    stub.wait_for("generation 2")
    stub.wait_for("generation 3")
    assert word(port) == "last"
    stub.stop()
    assert stub.ended() == 0
    assert sum("reloaded" in line for line in stub.said) == 2


def test_a_changed_file_is_noticed(
    run_stub: Run, words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_WATCH", "1")
    stub = run_stub("plain", 1)
    port = stub.ports()[0]
    words.write_text("changed")
    stub.wait_for(rf"reloaded \({words} changed\), generation 2")
    assert word(port) == "changed"
    stub.stop()
    assert stub.ended() == 0


def test_sigterm_lets_the_news_spread_and_sigint_does_not(run_stub: Run) -> None:
    for number, late in ((signal.SIGTERM, True), (signal.SIGINT, False)):
        stub = run_stub("plain", 1)
        port = stub.ports()[0]
        began_at = time.monotonic()
        stub.stop(number)
        stub.wait_for("stopping")
        if late:
            assert ask(port)
        line = stub.wait_for("worker 0 drained")
        assert line.endswith("at last") == late
        assert (time.monotonic() - began_at >= 0.3) == late
        assert stub.ended() == 0


def test_a_second_signal_ends_what_is_still_streaming(run_stub: Run) -> None:
    stub = run_stub("streaming", 2, drain_s=3600.0)
    stub.ports()
    stub.stop()
    stub.wait_for("stopping")
    time.sleep(0.5)
    stub.stop()
    stub.wait_for("ending now")
    assert stub.ended() == 0
    assert sum("ended, cut" in line for line in stub.said) == 2
    assert not any("killing" in line for line in stub.said)


def test_a_worker_that_is_told_alone_ends_and_is_replaced(run_stub: Run) -> None:
    stub = run_stub("plain", 1)
    port = stub.ports()[0]
    _, pid = ask(port)
    os.kill(pid, signal.SIGTERM)
    stub.wait_for("worker 0 drained")
    assert ask(port)[1] != pid
    stub.stop()
    assert stub.ended() == 0
