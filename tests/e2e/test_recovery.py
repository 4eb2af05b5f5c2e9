"""Nothing that the gateway needs is there when it starts: it serves what it can, says what is
missing, and recovers by itself."""

from __future__ import annotations

from typing import Any

from client import chat
from key_host import KeyHost
from ports import free_port
from running import Caller, Identity, Process, admin, eventually, metric

from loadtest.replica import FakeReplica


async def reasons(gateway: Process) -> list[str]:
    page = await admin(gateway, "/readyz")
    found: list[str] = page.json()["reasons"]
    assert page.json()["ready"] is (not found)
    assert page.status == (503 if found else 200)
    return found


async def test_a_gateway_that_starts_alone_recovers_piece_by_piece(
    identity: Identity, valkey: Any
) -> None:
    valkey.stop()
    host, key_port, replica_port = KeyHost(identity), free_port(), free_port()
    document = identity.config(
        [f"http://127.0.0.1:{replica_port}"],
        limits={
            "store": {"redis": {"url": valkey.url}},
            "rules": [{"name": "all", "limit": 6_000}],
        },
        upstream={"health": {"interval_s": 0.5}},
    )
    document["auth"]["issuers"][0]["jwks"] = {
        "url": f"https://127.0.0.1:{key_port}/jwks.json",
        "ca": str(identity.files.authority),
        "cool_down_s": 0.5,
    }
    with Process(document) as gateway:
        assert (await admin(gateway, "/healthz")).status == 200
        caller = Caller(gateway, identity)

        async def all_known() -> bool:
            found = "\n".join(await reasons(gateway))
            return (
                f"no key set of the issuer {identity.issuer.issuer}: the last fetch failed" in found
                and "the limits' store" in found
                and "model demo: no usable replica" in found
            )

        await eventually(all_known)
        assert len(await reasons(gateway)) == 3
        unknown = await caller.ask(chat())
        assert unknown.status == 503  # not 401: we have no keys to know that from
        assert int(unknown.headers["retry-after"]) >= 1

        async def left(count: int) -> bool:
            return len(await reasons(gateway)) == count

        await host.start(key_port)
        try:
            await eventually(lambda: left(2))
            away = await caller.ask(chat())
            assert away.status == 503
            assert "replica" in away.json()["error"]["message"].lower()
            async with FakeReplica(port=replica_port):
                await eventually(lambda: left(1))
                assert (await caller.ask(chat())).status == 200  # limited locally
                valkey.start()
                await eventually(lambda: left(0))
                assert (await caller.ask(chat())).text
        finally:
            await host.stop()
        said = gateway.stderr().decode()
        assert "Traceback" not in said
        assert '"message": "limits: ' in said
        assert "is not in use: unreachable" in said or "is not in use: refused" in said
        assert f"cannot fetch the key set of {identity.issuer.issuer}" in said


async def test_the_admin_pages(identity: Identity, replicas: list[FakeReplica]) -> None:
    with Process(identity.config([replica.url for replica in replicas])) as gateway:
        assert (await admin(gateway, "/healthz")).body == b"ok\n"
        version = (await admin(gateway, "/version")).json()
        assert version["name"] == "headrace"
        assert version["version"]
        assert [version["pid"]] == gateway.workers
        caller = Caller(gateway, identity)
        for _ in range(3):
            await caller.ask(chat(max_tokens=4))
        page = (await admin(gateway, "/metrics")).body.decode()
        assert 'headrace_exchanges_total{route="/v1/chat/completions",status="200"} 3.0' in page
        assert await metric(gateway, "headrace_tokens_total", model="demo", kind="completion") == 12
        assert await metric(gateway, "headrace_prompts_total", model="demo", exact="true") == 3
        assert (await admin(gateway, "/v1/models")).status == 404
        # What is for operators is not for clients.
        assert (await caller.ask(b"", method="GET", path="/metrics")).status == 404
