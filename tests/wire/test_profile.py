"""The profiler against the gateway over TLS, and against what is no model server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from running import Identity, InProcess

from loadtest.replica import FakeReplica
from proxy.serve.__main__ import main


async def test_the_gateway_is_profiled(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    identity = Identity(tmp_path)
    monkeypatch.setenv("TOKEN", identity.issuer.token("acme"))
    async with (
        FakeReplica(prefill_base_ms=20, token_ms=2) as replica,
        InProcess(identity.config([replica.url]), tmp_path) as gateway,
    ):
        url = f"https://localhost:{gateway.port}"
        options = ["--model", "demo", "--ca", str(identity.files.authority)]
        options += ["--token-env", "TOKEN", "--requests", "4"]
        assert await asyncio.to_thread(main, ["profile", url, *options]) == 0
        shown: str = capsys.readouterr().out
        assert await asyncio.to_thread(main, ["profile", url, *options[:-4]]) == 1
        assert "401" in capsys.readouterr().err
    for stage in ("resolve", "connect", "TLS, full", "TLS, resumed", "first token", "per token"):
        assert stage in shown
    server = shown[shown.index("as the server says") :]
    assert {"auth", "tokenize", "route", "first_token"} <= set(server.split())
    assert [line.split()[0] for line in shown.splitlines()[-3:]] == ["voice", "chat", "rag"]


async def test_nobody_there_is_said(capsys: Any) -> None:
    arguments = ["profile", "http://127.0.0.1:1", "--model", "m", "--timeout", "2"]
    assert await asyncio.to_thread(main, arguments) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
