from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from core.errors import ConfigError
from proxy.line_sink import BUFFER_BYTES, LINE_BYTES, LineSink, append_standard_streams


class Losses:
    def __init__(self) -> None:
        self.lines = 0

    def __call__(self, lines: int) -> None:
        self.lines += lines


@pytest.fixture
def losses() -> Losses:
    return Losses()


def fifo(path: Path) -> int:
    """A reader of a new named pipe, which a sink can then open."""
    os.mkfifo(path)
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


def read_all(fd: int) -> bytes:
    data = b""
    while True:
        try:
            piece = os.read(fd, 65536)
        except BlockingIOError:
            return data
        if not piece:
            return data
        data += piece


def test_lines_are_appended_to_a_file_in_order(tmp_path: Path, losses: Losses) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"before\n")
    sink = LineSink(str(path), losses)
    lines = [b"%d\n" % index for index in range(30_000)]
    for line in lines:
        sink.put(line)
    assert path.read_bytes() == b"before\n"
    sink.flush()
    assert sink.waiting_bytes == 0
    assert path.read_bytes() == b"before\n" + b"".join(lines)
    sink.close()
    sink.close()
    assert losses.lines == 0


def test_a_full_pipe_drops_whole_lines_and_recovers(tmp_path: Path, losses: Losses) -> None:
    reader = fifo(tmp_path / "pipe")
    sink = LineSink(str(tmp_path / "pipe"), losses)
    lines = [b"%06d %s\n" % (index, b"x" * 300) for index in range(3000)]
    for line in lines:
        sink.put(line)
        sink.flush()
    assert losses.lines > 0
    assert BUFFER_BYTES - 400 < sink.waiting_bytes <= BUFFER_BYTES
    got = b""
    while sink.waiting_bytes:
        got += read_all(reader)
        sink.flush()
    got += read_all(reader)
    assert got == b"".join(lines[: len(lines) - losses.lines])
    sink.put(b"again\n")
    sink.flush()
    assert read_all(reader) == b"again\n"
    sink.close()
    os.close(reader)


def test_two_writers_on_one_pipe_do_not_tear(tmp_path: Path, losses: Losses) -> None:
    reader = fifo(tmp_path / "pipe")
    sinks = [LineSink(str(tmp_path / "pipe"), losses) for _ in range(2)]
    letters = (b"a", b"b")
    got = b""
    for turn in range(400):
        for sink, letter in zip(sinks, letters, strict=True):
            sink.put(letter * (700 + turn % 900) + b"\n")
            sink.flush()
        if turn % 40 == 0:
            got += read_all(reader)
    while any(sink.waiting_bytes for sink in sinks):
        got += read_all(reader)
        for sink in sinks:
            sink.flush()
    got += read_all(reader)
    lines = got.splitlines()
    assert len(lines) + losses.lines == 800
    assert all(len(set(line)) == 1 and 700 <= len(line) < 1600 for line in lines)
    for sink in sinks:
        sink.close()
    os.close(reader)


def test_a_reader_that_is_gone_costs_lines_only(tmp_path: Path, losses: Losses) -> None:
    reader = fifo(tmp_path / "pipe")
    sink = LineSink(str(tmp_path / "pipe"), losses)
    os.close(reader)
    for _ in range(3):
        sink.put(b"lost\n")
    sink.flush()
    assert (losses.lines, sink.waiting_bytes) == (3, 0)
    sink.put(b"lost too\n")
    sink.close()
    assert losses.lines == 4


def test_a_full_disk_drops_whole_lines(losses: Losses) -> None:
    sink = LineSink("/dev/full", losses)
    for _ in range(5):
        sink.put(b"line\n")
    sink.flush()
    assert (losses.lines, sink.waiting_bytes) == (5, 0)
    sink.close()


def test_a_line_cut_by_a_full_disk_is_finished_before_any_other(
    tmp_path: Path, losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    sink = LineSink(str(path), losses)
    room = [8]
    real = os.write

    def write(fd: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "full")
        taken = real(fd, data[: room[0]])
        room[0] -= taken
        return taken

    monkeypatch.setattr(os, "write", write)
    for line in (b"first\n", b"second\n", b"third\n"):
        sink.put(line)
    sink.flush()
    assert path.read_bytes() == b"first\nse"
    assert losses.lines == 1
    room[0] = 1000
    sink.put(b"fourth\n")
    sink.flush()
    assert path.read_bytes() == b"first\nsecond\nfourth\n"
    assert losses.lines == 1
    sink.close()


def test_a_line_too_long_for_one_write_is_dropped(tmp_path: Path, losses: Losses) -> None:
    sink = LineSink(str(tmp_path / "log"), losses)
    sink.put(b"x" * LINE_BYTES + b"\n")
    sink.put(b"x" * (LINE_BYTES - 1) + b"\n")
    sink.close()
    assert losses.lines == 1
    assert (tmp_path / "log").stat().st_size == LINE_BYTES
    sink.put(b"late\n")
    assert losses.lines == 2


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_an_inherited_stream_keeps_its_blocking_flag(
    kind: str, losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "pipe":
        reader, writer = os.pipe()
    else:
        ours, theirs = socket.socketpair()
        reader, writer = ours.detach(), theirs.detach()
    monkeypatch.setattr("proxy.line_sink._STANDARD", {"stdout": writer})
    sink = LineSink("stdout", losses)
    for _ in range(400):
        sink.put(b"x" * 4000 + b"\n")
        sink.flush()
    assert losses.lines > 0  # it filled up, and nothing waited for it
    assert os.get_blocking(writer)
    os.set_blocking(reader, False)
    while sink.waiting_bytes:
        assert read_all(reader)
        sink.flush()
    sink.close()
    os.write(writer, b"still open")
    os.close(reader)
    os.close(writer)


def test_lines_of_others_go_after_ours_in_a_file(
    tmp_path: Path, losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    inherited = os.open(log, os.O_WRONLY | os.O_CREAT)  # as the shell's `2> log` does
    monkeypatch.setattr("proxy.line_sink._STANDARD", {"stderr": inherited, "stdout": 1_000_000})
    append_standard_streams()
    sink = LineSink("stderr", losses)
    for number in range(2):
        sink.put(b"a worker's line %d\n" % number)
        sink.flush()
        os.write(inherited, b"the supervisor's line %d\n" % number)
    assert log.read_bytes().splitlines() == [
        b"a worker's line 0",
        b"the supervisor's line 0",
        b"a worker's line 1",
        b"the supervisor's line 1",
    ]
    sink.close()
    os.close(inherited)


@pytest.mark.parametrize("target", ["/", "/nowhere/log"])
def test_a_target_that_cannot_be_opened_is_the_operators_fault(target: str, losses: Losses) -> None:
    with pytest.raises(ConfigError, match="cannot write log lines"):
        LineSink(target, losses)


def test_a_file_that_is_moved_away_is_begun_anew(tmp_path: Path, losses: Losses) -> None:
    path, old = tmp_path / "log", tmp_path / "old"
    sink = LineSink(str(path), losses)
    sink.put(b"one\n")
    sink.flush()
    path.rename(old)
    sink.put(b"two\n")
    sink.flush()
    assert (old.read_bytes(), path.read_bytes()) == (b"one\n", b"two\n")
    path.unlink()
    sink.put(b"three\n")
    sink.close()
    assert path.read_bytes() == b"three\n"
    assert losses.lines == 0


def test_where_no_new_file_can_be_made_the_old_one_must_do(tmp_path: Path, losses: Losses) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    sink = LineSink(str(folder / "log"), losses)
    folder.rename(tmp_path / "away")
    sink.put(b"one\n")
    sink.close()
    assert (tmp_path / "away" / "log").read_bytes() == b"one\n"
    assert losses.lines == 0
