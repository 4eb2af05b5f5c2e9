"""Two gateways that stand for two hosts: tickets of one are good at the other, also after a SIGHUP
has changed the certificate of one."""

from __future__ import annotations

import asyncio
import secrets
import signal
from pathlib import Path
from typing import Any

import yaml
from authority import Authority, Pair
from running import Process, base_config, eventually, metric
from tls_client import Reply, get

WORKERS = 4


def document(pair: Pair, secret: Path, **tls: Any) -> dict[str, Any]:
    made = base_config(["http://127.0.0.1:9"], workers=WORKERS)
    del made["models"][0]["tokenizer"], made["models"][0]["chat_template"]
    made["listen"]["tls"] = {
        "certificate": str(pair.certificate),
        "key": str(pair.key),
        "tickets": {"secret": f"file:{secret}"},
        **tls,
    }
    return made


async def test_every_reconnection_resumes_at_any_worker_of_any_host(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text(secrets.token_hex(32))
    made = document(authority.issue("localhost"), secret)
    client = authority.client_context()
    with Process(made) as one, Process(made) as two:
        session = None
        replies: list[Reply] = []
        for number in range(41):
            port = (one, two)[number % 2].port
            replies.append(await asyncio.to_thread(get, port, client, session=session))
            session = replies[-1].session
        assert [reply.status for reply in replies] == [200] * 41
        assert [reply.resumed for reply in replies] == [False] + [True] * 40
        for gateway in (one, two):
            assert await metric(gateway, "headrace_tls_ticket_keys", source="secret") == WORKERS
        resumed = [
            await metric(gateway, "headrace_tls_handshakes_total", resumed="yes")
            for gateway in (one, two)
        ]
        assert sum(resumed) == 40

        renewed = authority.issue("localhost", kind="rsa")
        changed = document(renewed, secret)["listen"]["tls"]
        one.document["listen"]["tls"] = changed
        (one.folder / "headrace.yaml").write_text(yaml.safe_dump(one.document))
        one.signal(signal.SIGHUP)

        async def shown() -> bool:
            fresh = await asyncio.to_thread(get, one.port, client)
            return fresh.shown != replies[0].shown

        await eventually(shown)
        for _ in range(20):
            reply = await asyncio.to_thread(get, one.port, client, session=session)
            assert reply.resumed
            session = reply.session
