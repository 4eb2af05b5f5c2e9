"""Replicas that come, go, are drained and are killed, with streams under way."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import orjson
import pytest
from client import Answer, Client, ask, chat
from dns_server import NOERROR, SERVFAIL, DnsServer
from ports import free_port
from running import ROOT, Process, admin, base_config, eventually

from loadtest.replica import FakeReplica
from proxy.serve.__main__ import main


async def headrace(gateway: Process, *arguments: str) -> tuple[int, str]:
    """Status and words of a command, which takes no process of its own here."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = await asyncio.to_thread(
            main, [*arguments, "-c", str(gateway.folder / "headrace.yaml")]
        )
    return code, said.getvalue()


def served(replica: FakeReplica) -> int:
    return len(replica.requests)


async def spread(gateway: Process, count: int = 8) -> None:
    for number in range(count):
        answer = await ask(gateway.port, chat(f"question {number} of many", max_tokens=2))
        assert answer.complete
        assert answer.text


async def test_a_drained_replica_ends_its_streams_and_gets_nothing_new() -> None:
    async with FakeReplica() as one, FakeReplica() as two:
        document = base_config([one.url, two.url], workers=2)
        with Process(document) as gateway:
            for replica in (one, two):
                replica.behaviour = "token_ms=100"
            clients = [await Client.open(gateway.port) for _ in range(4)]
            for number, client in enumerate(clients):
                client.send(chat(f"{number} is a number", max_tokens=20))
            streams = [asyncio.ensure_future(client.answer()) for client in clients]
            while served(one) + served(two) < 4:
                await asyncio.sleep(0.01)
            code, said = await headrace(gateway, "drain", "r0")
            assert (code, "changed: $.replicas" in said) == (0, True), said
            for replica in (one, two):
                replica.behaviour = ""
            before = served(one)
            await spread(gateway)
            assert served(one) == before
            for answer in await asyncio.gather(*streams):
                assert answer.complete
                assert answer.body.endswith(b"data: [DONE]\n\n")
            code, said = await headrace(gateway, "drain", "r9")
            assert (code, "no replica has the id r9" in said) == (1, True)
            assert (await headrace(gateway, "drain", "r1"))[0] == 0
            assert (await ask(gateway.port, chat())).status == 503
            assert "it has no replica" in (await admin(gateway, "/readyz")).body.decode()
            assert (await headrace(gateway, "undrain", "r0"))[0] == 0
            await spread(gateway, 2)
            assert served(one) > before
            for client in clients:
                client.close()


async def test_replicas_of_a_file_come_and_go(tmp_path: Path) -> None:
    listed = tmp_path / "replicas.json"

    def write(*replicas: FakeReplica, text: str | None = None) -> None:
        entries = [{"url": r.url, "model": "demo", "id": f"f{r.port}"} for r in replicas]
        partial = tmp_path / "part"
        partial.write_text(json.dumps({"replicas": entries}) if text is None else text)
        os.replace(partial, listed)

    async with FakeReplica() as one, FakeReplica() as two:
        write(one)
        document = base_config([], workers=2, replicas_file=str(listed), reload={"watch": False})
        with Process(document) as gateway:
            await spread(gateway, 2)
            write(text="replicas: [{url: nowhere}]")
            code, said = await headrace(gateway, "reload")
            assert code == 2
            assert f"{listed}: $.replicas[0]" in said
            for text in (
                "",
                "replicas: [{url: 'http://127.0.0.1:1', mod",
                "\0" * 64,
                "#" * 300_000,
            ):
                write(text=text)
                assert (await headrace(gateway, "reload"))[0] == 2, text[:20]
            os.unlink(listed)
            assert (await headrace(gateway, "reload"))[0] == 2
            os.mkfifo(listed)
            assert (await headrace(gateway, "reload"))[0] == 2
            await spread(gateway, 2)
            assert served(one) == 4
            write(two)
            assert (await headrace(gateway, "reload"))[0] == 0
            await spread(gateway, 4)
            assert (served(one), served(two)) == (4, 4)


async def test_replicas_that_dns_names_come_and_go() -> None:
    pytest.importorskip("dns", reason="the extra `dns` is not installed")
    async with DnsServer() as dns, FakeReplica() as one, FakeReplica() as two:
        service = "SRV _http._tcp.vllm.test"

        def names(*ports: int) -> None:
            dns.records[service] = [f"1 1 {port} localhost." for port in ports]

        document = base_config(
            [],
            workers=2,
            discover=[{"srv": "_http._tcp.vllm.test.", "model": "demo"}],
            dns={"servers": [dns.address], "min_s": 0.1, "max_s": 0.1},
        )
        names(one.port)
        gateway = Process(document)
        gateway.start()
        try:
            await asyncio.to_thread(gateway.wait_listening)
            await spread(gateway, 2)
            assert served(one) == 2, "what is asked before the start is there from the first one on"

            one.behaviour = "token_ms=50"
            client = await Client.open(gateway.port)
            client.send(chat("a long story", max_tokens=40))
            stream = asyncio.ensure_future(client.answer())
            while served(one) < 3:
                await asyncio.sleep(0.01)
            silent = free_port()
            names(two.port, silent)

            async def moved() -> bool:
                before = served(one)
                await spread(gateway, 4)
                return served(one) == before

            await eventually(moved)
            answer = await stream
            assert answer.complete
            assert answer.body.endswith(b"data: [DONE]\n\n"), "it is left to end its streams"
            used = {record["replica"] for record in gateway.records()}
            assert used == {f"localhost:{one.port}", f"localhost:{two.port}"}

            dns.rcode = SERVFAIL

            async def stale() -> bool:
                page = (await admin(gateway, "/metrics")).body.decode()
                return 'discovery_stale{query="SRV _http._tcp.vllm.test."} 1' in page

            await eventually(stale)
            await spread(gateway, 2)
            os.kill(gateway.core, signal.SIGKILL)  # the next one knows nothing, and empties nothing
            dns.rcode = NOERROR
            dns.records.clear()

            async def gone() -> bool:
                return (await admin(gateway, "/readyz")).status == 503

            await eventually(gone)
            assert (await ask(gateway.port, chat())).status == 503
            names(one.port)
            dns.rcode = SERVFAIL

            async def why() -> bool:
                return "DNS SRV _http" in (await admin(gateway, "/readyz")).body.decode()

            await eventually(why)
            client.close()
        finally:
            await asyncio.to_thread(gateway.__exit__, None, None, None)


async def test_a_gateway_begins_while_dns_is_away_and_its_successor_goes_on_without() -> None:
    pytest.importorskip("dns", reason="the extra `dns` is not installed")
    async with DnsServer() as dns, FakeReplica() as replica:
        dns.records["A vllm.test"] = ["127.0.0.1"]
        dns.rcode = SERVFAIL
        document = base_config(
            [],
            workers=1,
            discover=[{"dns": "vllm.test.", "port": replica.port, "model": "demo"}],
            dns={"servers": [dns.address], "timeout_s": 0.5, "min_s": 0.1, "max_s": 0.1},
        )
        gateway = Process(document)
        newer = gateway.replacement()
        gateway.start()
        try:
            await asyncio.to_thread(gateway.wait_listening)

            async def why() -> bool:
                return "DNS A vllm.test" in (await admin(gateway, "/readyz")).body.decode()

            await eventually(why)
            assert (await ask(gateway.port, chat())).status == 503
            dns.rcode = NOERROR

            async def served_now() -> bool:
                return (await ask(gateway.port, chat())).status == 200

            await eventually(served_now)
            dns.rcode = SERVFAIL
            newer.start()
            await asyncio.to_thread(newer.wait_listening)
            assert (await ask(gateway.port, chat())).complete
            record = newer.records()[-1]
            assert (record["replica"], record["status"]) == (f"127.0.0.1:{replica.port}", 200)
        finally:
            if newer._process is not None:
                await asyncio.to_thread(newer.stop)
            await asyncio.to_thread(gateway.__exit__, None, None, None)


@contextmanager
def replica_process(port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "loadtest", "replica", "--port", str(port)]
    command += ["--token-ms", "40"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def test_a_replica_killed_at_fifty_streams_a_second_costs_its_own_streams() -> None:
    ports = [free_port(), free_port()]
    document = base_config(
        [f"http://127.0.0.1:{port}" for port in ports],
        workers=1,
        upstream={"health": {"interval_s": 0.3, "max_backoff_s": 2}},
    )
    asked: list[tuple[float, Answer, float]] = []

    async def one(gateway: Process, number: int) -> None:
        began_at = time.monotonic()
        answer = await ask(gateway.port, chat(f"{number} streams", max_tokens=15))
        asked.append((began_at, answer, time.monotonic()))

    with (
        replica_process(ports[0]) as victim,
        replica_process(ports[1]),
        Process(document) as gateway,
    ):
        for port in ports:
            await eventually(lambda port=port: answers(port))

        async def ready() -> bool:
            return (await admin(gateway, "/readyz")).status == 200

        await eventually(ready)
        tasks = []
        killed_at = 0.0
        for number in range(100):
            if number == 50:
                victim.send_signal(signal.SIGKILL)
                killed_at = time.monotonic()
            tasks.append(asyncio.ensure_future(one(gateway, number)))
            await asyncio.sleep(0.02)
        await asyncio.gather(*tasks)
        cut = [(began, answer, end) for began, answer, end in asked if not answer.complete]
        records = {r["request_id"]: r for r in gateway.records()}
        assert 0 < len(cut) < 50
        for began_at, answer, ended_at in cut:
            assert began_at < killed_at + 0.1
            assert ended_at < killed_at + 1.0
            assert b"[DONE]" not in answer.body
            last = answer.body.rstrip().rpartition(b"\n\n")[2]
            assert orjson.loads(last.removeprefix(b"data: "))["error"]["code"]
            record = records[answer.headers["x-request-id"]]
            assert record["replica"] == "r0"
        assert all(a.status == 200 and a.text for _, a, _ in asked)
        with replica_process(ports[0]):  # and it comes back by itself

            async def again() -> bool:
                await spread(gateway, 4)
                return any(r["replica"] == "r0" for r in gateway.records()[-4:])

            await eventually(again)
