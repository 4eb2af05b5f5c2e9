"""Where a request would go, asked of a running gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import yaml
from client import Client, chat
from running import InProcess, base_config

from loadtest.replica import FakeReplica
from proxy.serve.__main__ import main


async def test_the_command_shows_every_term_and_charges_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "where does a river begin? " * 40
    async with FakeReplica() as one, FakeReplica() as two:
        made = base_config([one.url, two.url], admin={"address": "127.0.0.1:0"})
        async with InProcess(made, tmp_path) as gateway:
            client = await Client.open(gateway.port)
            assert (await client.ask(chat(text))).status == 200
            client.close()
            made["admin"]["address"] = f"127.0.0.1:{gateway.admin_port}"
            file = tmp_path / "asked.yaml"
            file.write_text(yaml.safe_dump(made))
            command = ["route", "explain", "--model", "demo", "--prompt", text]
            for where in (["-c", str(file)], ["--url", f"http://127.0.0.1:{gateway.admin_port}/"]):
                assert await asyncio.to_thread(main, [*command, *where]) == 0
                shown = capsys.readouterr().out
                assert shown.startswith("demo: ")
                assert shown.count("<- chosen") == 1
            assert await asyncio.to_thread(main, [*command, *where, "--json"]) == 0
            told = json.loads(capsys.readouterr().out)
            unknown = ["route", "explain", "--model", "none", "--prompt", "x", *where]
            assert await asyncio.to_thread(main, unknown) == 1
            assert "does not exist" in capsys.readouterr().err
            members = gateway.worker._replicas.router._models["demo"].members
            assert [member.account.in_flight for member in members] == [0, 0]
    served = one if one.requests else two
    chosen = next(target for target in told["targets"] if target["replica"] == told["choice"])
    assert chosen["replica"] == ("r0" if served is one else "r1")
    assert chosen["cached_tokens"] == told["blocks"] * 64 > 0
    assert chosen["score"]["total"] < min(
        target["score"]["total"] for target in told["targets"] if target is not chosen
    )


@pytest.mark.parametrize("shown", [True, False])
async def test_answers_say_why_to_those_who_may_know(tmp_path: Path, shown: bool) -> None:
    async with FakeReplica() as replica:
        routing = {"debug_header": {"tenants": ["anonymous"] if shown else ["other"]}}
        async with InProcess(base_config([replica.url], routing=routing), tmp_path) as gateway:
            client = await Client.open(gateway.port)
            answer = await client.ask(chat())
            client.close()
    told = answer.headers.get("x-headrace-route", "")
    assert answer.status == 200
    assert told.startswith("r0: cached=0 total=") == shown
    assert ("session=" in told) == shown
