"""The load test by HTTP/2, from several processes, watching a server, and with happenings."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest
from running import Identity, InProcess, base_config

from loadtest.__main__ import main
from loadtest.lanes import client_context, parse_target
from loadtest.replica import FakeReplica
from loadtest.result import Result, decode
from loadtest.runner import Runner
from loadtest.scenario import (
    Burst,
    Connections,
    Disconnects,
    Requests,
    Scenario,
    SlowReaders,
)
from loadtest.summary import summarize

ROOT = Path(__file__).parents[2]


def burst(size: int, streams: int, *, reuse: bool = True, **kind: Any) -> Scenario:
    return Scenario(
        name="t",
        arrivals=Burst(size=size, every_s=100),
        requests=[Requests(**{"name": "a", "prompt": 10, "output": 6, **kind})],
        duration_s=60,
        connections=Connections(reuse=reuse, http2_streams=streams),
    )


async def run(port: int, plan: Scenario, context: ssl.SSLContext | None = None) -> Result:
    url = f"https://localhost:{port}" if context else f"http://127.0.0.1:{port}"
    runner = Runner(plan, 1, parse_target(url, context), lambda _: {"x-headrace-timing": "1"})
    return summarize(plan, 1, await runner.run(), {})


async def test_many_requests_share_a_connection_by_http2(tmp_path: Path) -> None:
    async with (
        FakeReplica(token_ms=2) as replica,
        InProcess(base_config([replica.url]), tmp_path) as gateway,
    ):
        found = await run(gateway.port, burst(20, 10, turns=2))
        assert (found.counts.ok, found.counts.errors) == (40, {})
        assert found.counts.connections == 2
        assert found.counts.output_tokens == 240
        sent = [record.body["messages"] for record in replica.requests]
        assert sorted(map(len, sent)) == [1] * 20 + [3] * 20  # what was said is said again


async def test_one_request_for_each_connection_by_http2(tmp_path: Path) -> None:
    async with (
        FakeReplica() as replica,
        InProcess(base_config([replica.url]), tmp_path) as gateway,
    ):
        found = await run(gateway.port, burst(5, 1, reuse=False, turns=2))
        assert (found.counts.ok, found.counts.connections) == (10, 10)


async def test_http2_needs_a_server_that_speaks_it(tmp_path: Path) -> None:
    identity = Identity(tmp_path)
    document = base_config([])
    document["listen"] |= {"tls": identity.tls, "http2_engine": "off"}
    authority = str(identity.files.authority)
    context = client_context(resume=True, ca_file=authority, insecure=False, http2=True)
    async with FakeReplica() as replica:
        document["replicas"] = [{"url": replica.url, "model": "demo"}]
        async with InProcess(document, tmp_path) as gateway:
            found = await run(gateway.port, burst(4, 2), context)
            assert found.counts.errors == {"tls": 4}


async def test_those_who_leave_and_read_slowly_by_http2_over_tls(tmp_path: Path) -> None:
    identity = Identity(tmp_path)
    authority = str(identity.files.authority)
    context = client_context(resume=True, ca_file=authority, insecure=False, http2=True)
    plan = burst(
        20,
        5,
        output=30,
        disconnects=Disconnects(share=0.5, after_tokens=2),
        slow_readers=SlowReaders(share=0.5, pause_s=0.01),
    )
    async with FakeReplica(token_ms=2) as replica:
        document = base_config([replica.url])
        document["listen"] |= {"tls": identity.tls}
        async with InProcess(document, tmp_path) as gateway:
            found = await run(gateway.port, plan, context)
            await replica.wait_for(lambda: replica.in_flight == 0)
    counts = found.counts
    assert counts.errors == {}
    assert counts.ok + counts.slow + counts.left == 20
    assert counts.left > 3
    assert counts.slow > 2


async def test_an_interrupt_leaves_what_ran_unfinished_by_http2(tmp_path: Path) -> None:
    async with (
        FakeReplica(behaviour="stall_mid") as replica,
        InProcess(base_config([replica.url]), tmp_path) as gateway,
    ):
        target = parse_target(f"http://127.0.0.1:{gateway.port}", None)
        runner = Runner(burst(3, 3), 1, target, lambda _: {})
        running = asyncio.ensure_future(runner.run())
        await replica.wait_for(lambda: len(replica.requests) == 3)
        runner.stop()
        await running
        assert [record.outcome for record in runner.samples.records] == ["unfinished"] * 3


YAML = """
name: small
arrivals: {kind: constant, rate: 20}
duration_s: 60
processes: 2
happenings: [{at_s: 0.1, do: touched}]
requests: [{name: a, prompt: 5, output: 4, prefix: {words: 5}}]
"""


async def test_two_clients_are_interrupted_and_tell_what_they_found(tmp_path: Path) -> None:
    """Two processes share the schedule, a server is watched, something happens; then Ctrl-C."""
    scenario, touched = tmp_path / "small.yaml", tmp_path / "touched"
    scenario.write_text(YAML)
    async with FakeReplica() as replica:
        command = [sys.executable, "-m", "loadtest", "run", str(scenario), "--url", replica.url]
        command += ["--pid", str(os.getpid()), "--do", f"touched=touch {touched}"]
        command += ["--seed", "1", "--out", str(tmp_path)]
        load = await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        await replica.wait_for(lambda: len(replica.requests) >= 10 and touched.exists())
        load.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(load.wait(), 60) == 130
    found = decode((tmp_path / "result.json").read_bytes(), "result.json")
    counts = found.counts
    assert found.interrupted
    assert counts.ok + counts.unfinished >= 10
    assert counts.errors == {}
    # Each does every second session, so that together none is left out or done twice.
    assert len(set(found.rows.due_s)) == len(found.rows.due_s) == counts.ok
    assert {each.what for each in found.series} >= {"rss", "cpu"}
    assert [each.name for each in found.happened] == ["touched"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give --do touched=COMMAND"),
        (["--do", "touched"], "not NAME=COMMAND"),
        (["--processes", "0"], "--processes"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.yaml").write_text(YAML)
    url = ["--url", "http://127.0.0.1:1"]
    assert main(["run", str(tmp_path / "small.yaml"), *url, *words]) == 2
    assert said in capsys.readouterr().err
