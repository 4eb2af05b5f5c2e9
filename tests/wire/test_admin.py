from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import uvloop
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from core.metrics import MetricsBoard
from core.shared_memory import StateBoard, WorkerState
from proxy.serve.admin import AdminServer, start_admin
from proxy.serve.supervise.messages import Outcome

Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    sock = socket.create_server(("127.0.0.1", 0))
    yield sock
    sock.close()


@pytest.fixture
def board() -> MetricsBoard:
    return MetricsBoard(2)


@pytest.fixture
def states() -> StateBoard:
    states = StateBoard(2)
    for index in range(2):
        states.for_worker(index).publish(WorkerState.READY, 100 + index, 50.0)
    return states


@pytest.fixture
def reasons() -> list[str]:
    return []


@pytest.fixture
async def server(
    sock: socket.socket, board: MetricsBoard, states: StateBoard, reasons: list[str]
) -> AsyncIterator[AdminServer]:
    server = await start_admin(
        sock, metrics=board, reasons=lambda: reasons, states=states, clock=lambda: 51.0
    )
    yield server
    await server.close()


async def ask(sock: socket.socket, head: str, accept: str = "*/*") -> Answer:
    """One request on a connection of its own: `head` is method and path."""
    if sock.family == socket.AF_UNIX:
        reader, writer = await asyncio.open_unix_connection(sock.getsockname())
    else:
        reader, writer = await asyncio.open_connection(*sock.getsockname())
    lines = f"{head} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept: {accept}\r\n\r\n"
    writer.write(lines.encode())
    raw = await reader.read()
    writer.close()
    await writer.wait_closed()
    top, _, body = raw.partition(b"\r\n\r\n")
    status_line, *fields = top.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
    return int(status_line.split()[1]), headers, body


async def test_which_configuration_is_in_force(sock: socket.socket, board: MetricsBoard) -> None:
    outcome = Outcome(3, "refused", 1.5, "$.a: one\n$.b: two")
    server = await start_admin(sock, metrics=board, reasons=list, outcome=lambda: outcome)
    status, _, body = await ask(sock, "GET /config")
    assert status == 200
    assert json.loads(body) == {
        "generation": 3,
        "last_reload": {
            "result": "refused",
            "at": 1.5,
            "changed": [],
            "reasons": ["$.a: one", "$.b: two"],
        },
    }
    await server.close()


@pytest.mark.usefixtures("server")
async def test_healthz_and_version(sock: socket.socket) -> None:
    status, headers, body = await ask(sock, "GET /healthz")
    assert (status, body) == (200, b"ok\n")
    assert headers["server"] == "headrace"
    assert headers["cache-control"] == "no-store"
    status, _, body = await ask(sock, "GET /version")
    document = json.loads(body)
    assert document.pop("version")
    assert document == {"name": "headrace", "python": platform.python_version(), "pid": os.getpid()}


@pytest.mark.usefixtures("server")
async def test_readyz_joins_its_own_reasons_and_the_other_workers(
    sock: socket.socket, states: StateBoard, reasons: list[str]
) -> None:
    status, headers, body = await ask(sock, "GET /readyz")
    assert (status, json.loads(body)) == (200, {"ready": True, "reasons": []})
    assert headers["content-type"] == "application/json"
    reasons.append("no key set")
    states.for_worker(1).publish(WorkerState.NOT_READY, 7, 51.0)
    status, _, body = await ask(sock, "GET /readyz?verbose")
    assert status == 503
    assert json.loads(body) == {
        "ready": False,
        "reasons": ["no key set", "worker 1 is not ready"],
    }


@pytest.mark.usefixtures("server")
async def test_readyz_notices_a_worker_that_has_gone_silent(
    sock: socket.socket, states: StateBoard
) -> None:
    states.for_worker(1).beat(11.0)
    status, _, body = await ask(sock, "GET /readyz")
    assert status == 503
    assert json.loads(body)["reasons"] == ["worker 1 has been silent for 40 s"]


@pytest.mark.usefixtures("server")
async def test_metrics_are_those_of_every_worker(sock: socket.socket, board: MetricsBoard) -> None:
    for index in range(2):
        counter = board.for_worker(index).counter("headrace_a_total", "A.", ("k",))
        counter.labels("v").inc(index + 1)
    status, headers, body = await ask(sock, "GET /metrics")
    assert status == 200
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert b'headrace_a_total{k="v"} 3.0\n' in body
    assert b"# EOF" not in body
    _, headers, body = await ask(sock, "GET /metrics", "application/openmetrics-text;version=1.0.0")
    assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")
    names = {family.name for family in text_string_to_metric_families(body.decode())}
    assert "headrace_a" in names


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/version", "/config"])
async def test_head_is_get_without_the_body(sock: socket.socket, path: str) -> None:
    got, asked = await ask(sock, f"GET {path}"), await ask(sock, f"HEAD {path}")
    assert asked[0] == got[0] == 200
    assert asked[2] == b""
    assert asked[1]["content-length"] == str(len(got[2]))


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    "head",
    ["POST /", "GET /debug", "POST /healthz", "DELETE /metrics", "GET /healthz/", "PUT /metrics"],
)
async def test_anything_else_is_not_found(sock: socket.socket, head: str) -> None:
    status, headers, body = await ask(sock, head)
    assert (status, json.loads(body)) == (404, {"error": "not found"})
    assert headers["content-type"] == "application/json"


async def test_closing_leaves_the_socket_to_its_owner(
    sock: socket.socket, board: MetricsBoard
) -> None:
    for _ in range(2):
        server = await start_admin(sock, metrics=board, reasons=list)
        assert (await ask(sock, "GET /readyz"))[0] == 200
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"ok\n")
        await server.close()
        await server.close()
        assert await reader.read() == b""  # the idle connection ends too
        writer.close()


async def test_a_unix_socket_is_served_too(tmp_path: Path, board: MetricsBoard) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "admin.sock"))
        sock.listen()
        server = await start_admin(sock, metrics=board, reasons=list)
        assert (await ask(sock, "GET /healthz"))[0] == 200
        await server.close()


async def test_rendering_lets_the_event_loop_turn(sock: socket.socket, board: MetricsBoard) -> None:
    metrics = board.for_worker(0)
    family = metrics.histogram("headrace_h", "H.", range(1, 16), ("k",))
    for index in range(190):
        family.labels(str(index)).observe(index)
    server = await start_admin(sock, metrics=board, reasons=list)
    request = asyncio.ensure_future(ask(sock, "GET /metrics"))
    turns = 0
    while not request.done():
        await asyncio.sleep(0)
        turns += 1
    assert (await request)[2].count(b"\n") > 190 * 17
    assert turns > 30
    await server.close()


def serve_in_child(
    index: int, sock: socket.socket, board: MetricsBoard, states: StateBoard, ready: int
) -> int:
    """Fork a worker that counts one thing, says that it is ready and serves until killed."""
    if pid := os.fork():
        return pid
    try:

        async def work() -> None:
            board.for_worker(index).counter("headrace_a_total", "A.").inc()
            states.for_worker(index).publish(WorkerState.READY, os.getpid(), time.monotonic())
            await start_admin(sock, metrics=board, reasons=list, states=states)
            os.write(ready, b".")
            await asyncio.sleep(60)

        uvloop.run(work())
    finally:
        os._exit(1)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_whichever_worker_accepts_answers_for_all(sock: socket.socket, board: MetricsBoard) -> None:
    states = StateBoard(2)
    ready_read, ready = os.pipe()
    pids = [serve_in_child(index, sock, board, states, ready) for index in range(2)]
    try:
        for _ in pids:
            assert os.read(ready_read, 1) == b"."
        for survivor in (None, 1):
            if survivor is not None:
                kill(pids.pop(0))
                board.fold(0)
                states.for_worker(0).clear()
            status, _, body = asyncio.run(ask(sock, "GET /metrics"))
            assert status == 200
            assert b"headrace_a_total 2.0\n" in body
            assert asyncio.run(ask(sock, "GET /readyz"))[0] == 200
            pid = json.loads(asyncio.run(ask(sock, "GET /version"))[2])["pid"]
            assert pid in pids
    finally:
        for pid in pids:
            kill(pid)
        os.close(ready_read)
        os.close(ready)
