"""Nothing that the gateway writes or shows has anything private: prompts, answers, tokens, keys.

One gateway with everything on, at its most talkative, is asked in every way, good and bad. Then all
that it has written is searched.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from client import Answer, Client, ask, chat
from collector import collecting
from ports import free_port
from running import Identity, InProcess, eventually

from loadtest.replica import FakeReplica
from proxy.serve.__main__ import main
from proxy.serve.logs import set_up_logging

PROMPT, TOOL, USER = "zanzibarprompt", "zanzibartool", "zanzibaruser"
UPSTREAM_KEY = "zanzibarupstream0123456789"
COOKIE, QUERY = "zanzibarcookie", "zanzibarquery"
FAILING = "user-of-a-broken-tokenizer"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def stderr(tmp_path: Path) -> Iterator[Path]:
    """Where the process's own log goes, at level debug, that of libraries too."""
    path, root = tmp_path / "stderr.jsonl", logging.getLogger()
    levels = root.level, logging.getLogger("headrace").level
    handler = set_up_logging("debug", target=str(path))
    root.setLevel(logging.DEBUG)
    yield path
    root.removeHandler(handler)
    handler.close()
    root.setLevel(levels[0])
    logging.getLogger("headrace").setLevel(levels[1])


def new_key(capsys: Any) -> tuple[str, dict[str, Any]]:
    """A key as its caller has it, and its entry in the configuration."""
    expires = (datetime.now(UTC) + timedelta(days=9)).date().isoformat()
    assert main(["key", "new", "--tenant", "keyed", "--expires", expires]) == 0
    shown = capsys.readouterr()
    key = next(word for word in shown.err.split() if word.startswith("hr_"))
    return key, yaml.safe_load(shown.out)


class Asker:
    """Asks with whatever credential, and keeps what the answers say in error."""

    def __init__(self, gateway: InProcess) -> None:
        self._port = gateway.port
        self.texts: list[str] = []
        self.errors = b""

    async def ask(self, document: Any, credential: str, **options: Any) -> Answer:
        headers = {"Authorization": f"Bearer {credential}", "Cookie": COOKIE, "traceparent": TRACE}
        answer = await ask(
            self._port, document, headers=headers | options.pop("headers", {}), **options
        )
        if answer.status >= 400:
            self.errors += answer.body + json.dumps(answer.headers).encode()
        return answer


async def drive(asker: Asker, token: str, key: str) -> list[int]:
    """Everything that a client may do, well or badly; the statuses."""
    said = {"user": USER, "metadata": {"note": TOOL}}
    tools = [{"type": "function", "function": {"name": TOOL, "parameters": {}}}]
    messages = {"model": "demo", "max_tokens": 8, "messages": [{"role": "user", "content": PROMPT}]}
    statuses = []
    for stream in (True, False):
        for document, path in (
            (
                chat(PROMPT, stream=stream, max_tokens=8, tools=tools, **said),
                "/v1/chat/completions",
            ),
            ({**messages, "stream": stream}, "/v1/messages"),
            ({"model": "demo", "input": PROMPT, "stream": stream}, "/v1/responses"),
            ({"model": "demo", "prompt": PROMPT, "stream": stream}, "/v1/completions"),
        ):
            for credential in (token, key):
                answer = await asker.ask(document, credential, path=path + "?q=" + QUERY)
                statuses.append(answer.status)
                if answer.status == 200 and path == "/v1/chat/completions" and stream:
                    asker.texts.append(answer.text)
    for fault in ("status=500", "kill_mid=2", "error_mid=2", "error_first=503", "truncate=1"):
        answer = await asker.ask(chat(PROMPT, max_tokens=8, user=f"fake:{fault}"), token)
        statuses.append(answer.status)
    for body in (
        b'{"model":"demo","messages":[{"role":"user","content":"' + PROMPT.encode(),
        json.dumps({"messages": [PROMPT], "model": "demo"}).encode(),
        json.dumps(chat(PROMPT * 20_000)).encode(),
        json.dumps({**chat(PROMPT), "max_tokens": PROMPT}).encode(),
        json.dumps({**chat(PROMPT), "n": -1}).encode(),
        json.dumps(chat(PROMPT, user=FAILING)).encode(),
        json.dumps({**chat(PROMPT), "priority": PROMPT}).encode(),
    ):
        statuses.append((await asker.ask(body, token)).status)
    for wrong in (token[:-4] + "AAAA", token.replace(".", "", 1), key[:-2] + "zz", UPSTREAM_KEY):
        statuses.append((await asker.ask(chat(PROMPT), wrong)).status)
    return statuses


async def surfaces(gateway: InProcess) -> bytes:
    """All pages of the admin listener, in both formats of metrics, and a document of the feed."""
    shown = b""
    openmetrics = {"Accept": "application/openmetrics-text"}
    for path in ("/metrics", "/config", "/version", "/readyz", "/healthz", "/", "/page.js"):
        for headers in ({}, openmetrics):
            answer = await ask(gateway.admin_port, b"", method="GET", path=path, headers=headers)
            assert answer.status == 200
            shown += answer.body
    client = await Client.open(gateway.admin_port)
    client.send(b"", method="GET", path="/live")
    await client.head()
    for _ in range(2):
        shown += await client.chunk() or b""
    client.close()
    assert b"latest" not in shown or b"recent" in shown
    return shown


async def test_nothing_private_is_told(tmp_path: Path, stderr: Path, capsys: Any) -> None:
    identity = Identity(tmp_path)
    key, entry = new_key(capsys)
    token = identity.issuer.token("acme", models=["demo"])
    access, usage = tmp_path / "access.jsonl", tmp_path / "usage.jsonl"
    async with FakeReplica() as replica, collecting() as collector:
        document = identity.config(
            [replica.url],
            admin={"address": f"127.0.0.1:{free_port()}"},
            budgets={"default": "voice"},
            tracing={"endpoint": collector.url, "sample_ratio": 1.0},
            log={"access": str(access), "level": "debug"},
            usage={"file": str(usage)},
        )
        document["listen"]["tls"] = "off"
        document["auth"]["api_keys"] = {"keys": entry if isinstance(entry, list) else [entry]}
        document["replicas"][0]["api_key"] = f"file:{tmp_path}/upstream.key"
        (tmp_path / "upstream.key").write_text(UPSTREAM_KEY)
        async with InProcess(document, tmp_path) as gateway:
            prompter = gateway.worker._snapshots.current.pipeline._services.prompter
            render = prompter.chat

            async def fail(model: str, document: Any, salt: str) -> Any:
                if document.get("user") == FAILING:
                    raise ValueError(f"a library quotes {document['messages']}")
                return await render(model, document, salt)

            prompter.chat = fail  # type: ignore[method-assign]
            asker = Asker(gateway)
            statuses = await drive(asker, token, key)
            shown = await surfaces(gateway)
            path = str(tmp_path / "headrace.yaml")
            assert await asyncio.to_thread(main, ["top", "-c", path, "--once"]) == 0
            assert await asyncio.to_thread(main, ["budget", "-c", path, "--all"]) == 0

            async def exported() -> bool:
                return len(collector.bytes) > 0

            await eventually(exported)
    printed = capsys.readouterr()
    assert {200, 400, 401, 500} <= set(statuses)
    assert replica.requests[0].headers["authorization"] == f"Bearer {UPSTREAM_KEY}"
    written = {
        "access log": access.read_bytes(),
        "usage records": usage.read_bytes(),
        "own log": stderr.read_bytes(),
        "pages": shown,
        "errors": asker.errors,
        "traces": collector.bytes,
        "commands": (printed.out + printed.err).encode(),
    }
    assert all(written.values())
    assert b"ValueError" in written["own log"]
    words = [text for text in asker.texts if len(text) > 20]
    assert words
    private = [PROMPT, TOOL, USER, UPSTREAM_KEY, COOKIE, QUERY, key, token, *words]
    private += [key[3:-8], *token.split(".")]
    for place, what in written.items():
        for secret in private:
            assert secret.encode() not in what, f"{secret[:20]} in the {place}"
