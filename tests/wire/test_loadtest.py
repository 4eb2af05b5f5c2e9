"""The load test against the fake replica: what it sees is what was done, and an overload of its
own it does not blame on others."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from authority import Authority
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from ports import free_port

from loadtest.__main__ import main
from loadtest.lanes import client_context, parse_target
from loadtest.replica import FakeReplica
from loadtest.result import Result, decode
from loadtest.runner import Runner
from loadtest.scenario import (
    Arrivals,
    Burst,
    Closed,
    Connections,
    Constant,
    Disconnects,
    Requests,
    Scenario,
    SlowReaders,
)
from loadtest.summary import summarize

ROOT = Path(__file__).parents[2]


def scenario(arrivals: Arrivals, changes: dict[str, Any] | None = None, **kind: Any) -> Scenario:
    requests = Requests(**{"name": "a", "prompt": 10, "output": 5, **kind})
    values = {"duration_s": 0.5, "timeout_s": 60, **(changes or {})}
    return Scenario(name="t", arrivals=arrivals, requests=[requests], **values)


def one_after_the_other(turns: int, **changes: Any) -> Scenario:
    """One session: each request is sent 50 ms after the answer before, however slow that was."""
    return scenario(
        Burst(size=1, every_s=100), {"duration_s": 60, **changes}, turns=turns, think_s=0.05
    )


async def run(
    replica: FakeReplica, plan: Scenario, tls: ssl.SSLContext | None = None
) -> tuple[Runner, Result]:
    target = parse_target(
        replica.url.replace("127.0.0.1", "localhost") if tls else replica.url, tls
    )
    runner = Runner(plan, 1, target, lambda session: {"x-session": str(session)})
    samples = await runner.run()
    return runner, summarize(plan, 1, samples, {})


async def test_every_request_is_sent_and_counted() -> None:
    async with FakeReplica(token_ms=2, prefill_base_ms=20) as replica:
        runner, found = await run(replica, scenario(Constant(rate=100)))
        assert found.counts.planned == found.counts.ok == len(replica.requests) == 50
        assert runner.live == 0
        seen = {record.headers["x-session"] for record in replica.requests}
        assert seen == {str(number) for number in range(50)}
        assert found.counts.output_tokens == sum(r.sent_tokens for r in replica.requests) == 250
        assert found.counts.prompt_tokens == sum(r.prompt_tokens for r in replica.requests)
        ttft, gaps = found.metric("ttft"), found.metric("itl")
        assert ttft is not None
        assert gaps is not None
        assert ttft.percentiles[0].value is not None
        assert ttft.percentiles[0].value >= 20
        assert gaps.count == 50 * 4
        assert found.counts.connections < 50


async def test_sessions_carry_what_was_said_before() -> None:
    async with FakeReplica() as replica:
        # They end long before the run would: its end cuts none of them.
        plan = scenario(Burst(size=5, every_s=100), {"duration_s": 60}, turns=3, think_s=0.01)
        _, found = await run(replica, plan)
        assert found.counts.ok == 15
        talk = [r.body for r in replica.requests if r.headers["x-session"] == "2"]
        assert [len(each["messages"]) for each in talk] == [1, 3, 5]
        assert talk[2]["messages"][:3] == talk[1]["messages"]
        assert talk[1]["messages"][1]["role"] == "assistant"
        assert talk[1]["messages"][1]["content"]


async def test_a_closed_loop_has_as_many_running_as_users() -> None:
    async with FakeReplica(token_ms=5) as replica:
        _, found = await run(replica, scenario(Closed(users=3)))
        assert found.counts.planned == 0
        assert found.counts.ok == len(replica.requests) > 3
        assert found.counts.connections == 3


async def test_those_who_leave_and_those_who_read_slowly_are_no_part_of_latency() -> None:
    async with FakeReplica(token_ms=3) as replica:
        leaving = scenario(
            Constant(rate=100),
            output=200,
            disconnects=Disconnects(share=0.5, after_tokens=2),
            slow_readers=SlowReaders(share=0.5, pause_s=0.01),
        )
        _, found = await run(replica, leaving)
        counts = found.counts
        await replica.wait_for(lambda: replica.in_flight == 0)
        aborted = sum(record.outcome == "aborted" for record in replica.requests)
        assert counts.left == aborted > 5
        assert counts.slow > 2
        assert counts.ok + counts.slow + counts.left == 50
        ttft = found.metric("ttft")
        assert ttft is not None
        assert ttft.count == counts.ok


async def test_one_who_leaves_at_once() -> None:
    async with FakeReplica(prefill_base_ms=50) as replica:
        plan = scenario(Constant(rate=20), disconnects=Disconnects(share=1, after_tokens=0))
        _, found = await run(replica, plan)
        assert found.counts.left == 10
        assert "no answer was measured" in found.verdict.reasons


@pytest.mark.parametrize(
    ("fake", "errors"),
    [
        ("no_done", {"truncated"}),
        ("kill_mid", {"truncated"}),
        ("truncate", {"truncated"}),
        ("reset_before_head", {"reset"}),
        ("garbage", {"protocol"}),
        ("error_mid", {"error_event"}),
        ("error_first", {"error_event"}),
        ("empty", {"truncated"}),
        ("status=429", {"http_429"}),
        ("stall_mid", {"timeout"}),
        ("stall_first", {"timeout"}),
    ],
)
async def test_each_failure_has_its_kind(fake: str, errors: set[str]) -> None:
    async with FakeReplica(behaviour=fake) as replica:
        timeout_s = 0.2 if errors == {"timeout"} else 60
        plan = scenario(Constant(rate=20), {"duration_s": 0.2, "timeout_s": timeout_s})
        _, found = await run(replica, plan)
        assert set(found.counts.errors) == errors
        assert found.counts.failed == 4
        assert found.counts.ok == 0


@pytest.mark.parametrize("fake", ["split=3", "one_byte", "keep_alive=0.01", "slow_head=0.05"])
async def test_oddities_are_no_failures(fake: str) -> None:
    async with FakeReplica(behaviour=fake, prefill_base_ms=30) as replica:
        _, found = await run(replica, scenario(Constant(rate=10)))
        assert (found.counts.ok, found.counts.errors) == (5, {})


async def test_a_kept_connection_that_was_closed_meanwhile_is_replaced() -> None:
    async with FakeReplica(keep_alive_s=0.01) as replica:
        _, found = await run(replica, one_after_the_other(6))
        assert (found.counts.ok, found.counts.errors) == (6, {})
        assert found.counts.connections == 6


async def test_a_kept_connection_is_used_again() -> None:
    async with FakeReplica(keep_alive_s=60) as replica:
        _, found = await run(replica, one_after_the_other(6))
        assert (found.counts.ok, found.counts.connections) == (6, 1)


async def test_nobody_listens() -> None:
    plan = scenario(Constant(rate=20))
    target = parse_target(f"http://127.0.0.1:{free_port()}", None)
    samples = await Runner(plan, 1, target, lambda session: {}).run()
    found = summarize(plan, 1, samples, {})
    assert found.counts.errors == {"connect": 10}
    assert not found.verdict.valid


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.mark.parametrize("resume", [True, False])
async def test_tls_sessions_are_resumed_if_asked_for(authority: Authority, resume: bool) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue("localhost").present(server)
    async with FakeReplica(tls=server) as replica:
        connections = Connections(reuse=False, resume=resume)
        plan = one_after_the_other(6, connections=connections)
        context = client_context(resume=resume, ca_file=str(authority.path), insecure=False)
        _, found = await run(replica, plan, context)
        counts = found.counts
        assert (counts.ok, counts.connections) == (6, 6)
        assert counts.resumed == (5 if resume else 0)
        handshakes = found.metric("tls")
        assert handshakes is not None
        assert handshakes.count == 6


async def test_a_certificate_that_does_not_hold_is_an_error_of_tls(authority: Authority) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue("elsewhere").present(server)
    async with FakeReplica(tls=server) as replica:
        context = client_context(resume=True, ca_file=str(authority.path), insecure=False)
        _, found = await run(replica, scenario(Constant(rate=20)), context)
        assert found.counts.errors == {"tls": 10}


async def test_an_overloaded_client_says_so() -> None:
    """In one process with the replica, 200 requests of 50 tokens in 40 ms are too many."""
    async with FakeReplica() as replica:
        plan = scenario(Constant(rate=5000), {"duration_s": 0.04}, prompt=200, output=50)
        _, found = await run(replica, plan)
        assert not found.verdict.valid
        assert any("of a core" in reason for reason in found.verdict.reasons)
        assert found.counts.ok == 200  # late, but none is forgotten


async def test_a_client_that_stood_still_says_so() -> None:
    async with FakeReplica() as replica:
        asyncio.get_running_loop().call_later(0.3, time.sleep, 0.1)
        _, found = await run(replica, scenario(Constant(rate=100)))
        assert not found.verdict.valid
        assert any("send lag" in reason for reason in found.verdict.reasons)
        ttft = found.metric("ttft")
        assert ttft is not None
        assert ttft.greatest >= 80
        assert found.counts.ok == 50


async def test_a_burst_is_counted_from_when_it_was_due() -> None:
    """One runs at a time: the others' wait is part of their latency."""
    async with FakeReplica(max_running=1, prefill_base_ms=10) as replica:
        plan = scenario(Burst(size=20, every_s=10), output=1)
        _, found = await run(replica, plan)
        ttft = found.metric("ttft")
        assert ttft is not None
        assert ttft.greatest >= 200
        assert found.counts.ok == 20


YAML = """
name: small
arrivals: {kind: constant, rate: 40}
duration_s: 0.5
requests: [{name: a, prompt: 5, output: 4}]
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(YAML)
    return path


class Replica:
    """A fake replica as a process."""

    def __init__(self, *options: str) -> None:
        self.url = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loadtest", "replica", "--port", "0", *options],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Replica:
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().split()[-1]
        return self

    def wait_for_requests(self, count: int) -> None:
        give_up_at = time.monotonic() + 60
        while self._seen() < count:
            assert time.monotonic() < give_up_at, "not in time"
            time.sleep(0.05)

    def _seen(self) -> int:
        with urllib.request.urlopen(f"{self.url}/fake/state", timeout=60) as answer:
            return int(json.load(answer)["seen"])

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()


def test_the_command(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = tmp_path / "key.pem"
    pem.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with Replica() as replica:
        command = ["run", str(small), "--url", replica.url, "--out", str(tmp_path / "o")]
        tokens = ["--token-key", str(pem), "--token-claim", "aud=api"]
        status = main([*command, *tokens, "--seed", "7", "--header", "X-Api-Key: secret"])
    assert status in (0, 1)  # as busy as the machine is: the words must fit
    said = capsys.readouterr().out
    assert "20 answers in 0.5 s" in said
    assert said.rstrip().splitlines()[-2].startswith("VALID" if status == 0 else "INVALID: ")
    data = (tmp_path / "o" / "result.json").read_bytes()
    found = decode(data, "result.json")
    assert found.about["seed"] == 7
    assert found.about["scenario"]["requests"][0]["output"] == 4
    assert {"python", "openssl", "uvloop"} <= set(found.about["versions"])
    assert b"secret" not in data
    page = tmp_path / "o" / "report.html"
    made = page.read_text()
    assert "secret" not in made
    page.unlink()
    assert main(["report", str(tmp_path / "o" / "result.json")]) == 0
    assert page.read_text() == made
    capsys.readouterr()
    kept = str(tmp_path / "o" / "result.json")
    assert main(["compare", kept, kept]) in ((0, 2) if status == 0 else (2,))
    assert capsys.readouterr().out.splitlines()[-1] in ("B is ALIKE", "B is UNCLEAR")
    main(["compare", "--json", kept, kept])
    assert json.loads(capsys.readouterr().out)["word"] in ("alike", "unclear")


def test_a_sweep(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Replica() as replica:
        command = ["sweep", str(small), "--url", replica.url, "--rates", "40,20", "--out"]
        status = main([*command, str(tmp_path / "o")])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("20 sessions/s: ")
    assert "highest good rate" in said[-1]
    assert said[-1].endswith("none") is (status == 1)
    found = decode((tmp_path / "o" / "rate-20" / "result.json").read_bytes(), "result.json")
    assert found.counts.ok == 10


def test_tokens_are_sent(small: Path, tmp_path: Path) -> None:
    """The replica takes one key alone: that no token is it shows that a token was sent."""
    key = ec.generate_private_key(ec.SECP256R1())
    pem = tmp_path / "key.pem"
    pem.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with Replica("--api-key", "k") as replica:
        command = ["run", str(small), "--url", replica.url, "--out", str(tmp_path)]
        main([*command, "--header", "Authorization: Bearer k"])
        assert json.loads((tmp_path / "result.json").read_bytes())["counts"]["ok"] == 20
        main([*command, "--header", "Authorization: Bearer k", "--token-key", str(pem)])
        counts = json.loads((tmp_path / "result.json").read_bytes())["counts"]
        assert counts["errors"] == {"http_401": 20}


def test_ctrl_c_leaves_a_report_of_what_was(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "o"
    with Replica() as replica:
        command = ["run", str(small), "--url", replica.url, "--duration", "60", "--out", str(out)]
        process = subprocess.Popen(
            [sys.executable, "-m", "loadtest", *command],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        replica.wait_for_requests(20)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"interrupted" in said
    found = decode((out / "result.json").read_bytes(), "result.json")
    assert found.interrupted
    assert found.counts.ok > 0
    assert found.measured_s < 30


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "nowhere", "--url", "http://a"], "nowhere: No such file"),
        (["run", "chat", "--url", "ftp://a"], "--url: ftp://a: give a URL"),
        (["run", "long", "--url", "http://a", "--rate", "3"], "--rate: the arrivals"),
        (["run", "chat", "--url", "http://a", "--rate", "0"], "--rate: give a number above 0"),
        (["run", "chat", "--url", "http://a", "--duration", "0"], "--duration: give seconds"),
        (["run", "chat", "--url", "http://a", "--header", "x"], "--header: 'x' is not"),
        (["compare", "/nowhere", "/nowhere"], "No such file"),
        (["sweep", "chat", "--url", "http://a", "--rates", "0"], "--rates: '0': a rate is"),
        (["sweep", "long", "--url", "http://a", "--rates", "1"], "--rate: the arrivals"),
        (["report", "/nowhere"], "No such file"),
        (["report", __file__], "not the result of a run"),
        (["run", "chat", "--url", "http://a", "--token-key", "/nowhere"], "No such file"),
        (
            ["run", "chat", "--url", "http://a", "--token-key", __file__],
            "not a private key in PEM",
        ),
        (
            ["run", "chat", "--url", "http://a", "--token-key", __file__, "--token-claim", "x"],
            "--token-claim: 'x' is not NAME=VALUE",
        ),
    ],
)
def test_a_bad_command_says_why(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


async def test_a_trace_is_replayed_with_what_its_requests_share(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 20 * n, "input_length": 1100, "output_length": 3, "hash_ids": [0, 1, 2 + n]}
        for n in range(20)
    ]
    trace.write_text("\n".join(json.dumps(line) for line in lines))
    async with FakeReplica(prefill_base_ms=1, token_ms=1) as replica:
        command = [sys.executable, "-m", "loadtest", "replay", str(trace), "--url", replica.url]
        command += ["--speed", "0.5", "--out", str(tmp_path), "--seed", "1"]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        await asyncio.wait_for(process.wait(), 60)
        records = list(replica.requests)
    found = decode((tmp_path / "result.json").read_bytes(), "result")
    assert (found.counts.planned, found.counts.ok) == (20, 20)
    assert found.about["trace"]["requests"] == 20
    tokens = [record.prompt_tokens for record in records]
    assert 800 < sum(tokens) / len(tokens) < 1800
    assert found.counts.cached_tokens > 0.5 * found.counts.prompt_tokens
