"""Where the process listens, and what it answers without credentials."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
import pytest_asyncio
from client import Client, ask, chat
from ports import free_port
from running import Caller, Identity, Process

from loadtest.replica import FakeReplica

pytestmark = pytest.mark.asyncio(loop_scope="module")

ORIGIN = "https://app.example"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(
    identity: Identity, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SimpleNamespace]:
    """One gateway on IPv4, IPv6 and a Unix socket."""
    port = free_port()
    async with FakeReplica() as replica:
        document = identity.config([replica.url])
        document["listen"]["cors"] = {"origins": [ORIGIN]}
        document["listen"]["addresses"] += [f"[::1]:{port}"]
        gateway = Process(document)
        path = gateway.folder / "s"
        gateway.document["listen"]["addresses"] += [f"unix:{path}"]
        with gateway:
            caller = Caller(gateway, identity)
            yield SimpleNamespace(gateway=gateway, caller=caller, ipv6_port=port, path=path)
        assert not path.exists()


async def test_ipv6(house: SimpleNamespace) -> None:
    client = await Client.open(house.ipv6_port, house.caller.context, host="::1")
    house.caller.send(client, chat())
    answer = await client.answer()
    assert answer.complete
    assert answer.text
    client.close()


async def test_a_unix_socket(house: SimpleNamespace) -> None:
    streams = await asyncio.open_unix_connection(
        str(house.path), ssl=house.caller.context, server_hostname="localhost"
    )
    client = Client(*streams)
    house.caller.send(client, chat())
    answer = await client.answer()
    assert answer.complete
    assert answer.text
    client.close()


async def test_all_places_are_announced(house: SimpleNamespace) -> None:
    said = house.gateway.stderr().decode()
    places = (
        f"https://127.0.0.1:{house.gateway.port}, https://[::1]:{house.ipv6_port}, "
        f"unix:{house.path} with 1 worker"
    )
    assert f"headrace: listening on {places}" in said


async def test_the_health_path_needs_no_credentials(house: SimpleNamespace) -> None:
    port, context = house.gateway.port, house.caller.context
    health = await ask(port, b"", method="GET", path="/healthz", context=context)
    assert (health.status, health.json()) == (200, {"status": "ok"})
    models = await ask(port, b"", method="GET", path="/v1/models", context=context)
    assert models.status == 401


async def test_a_preflight_needs_no_credentials(house: SimpleNamespace) -> None:
    asked = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
    }
    client = await Client.open(house.gateway.port, house.caller.context)
    client.send(b"", method="OPTIONS", headers=asked)
    answer = await client.head()
    assert answer.status == 204
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"].split(", ")
    assert {"authorization", "content-type", "x-stainless-os"} <= set(allowed)
    # The connection serves on, and the answer itself carries the header too.
    house.caller.send(client, chat(), headers={"Origin": ORIGIN})
    answer = await client.answer()
    assert answer.complete
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "origin" in answer.headers["vary"].lower()
    client.close()


async def test_errors_can_be_read_by_the_page_too(house: SimpleNamespace) -> None:
    answer = await house.caller.ask(chat(model="nope"), headers={"Origin": ORIGIN})
    assert answer.status == 404
    assert answer.headers["access-control-allow-origin"] == ORIGIN


async def test_other_origins_get_no_header(house: SimpleNamespace) -> None:
    answer = await house.caller.ask(chat(), headers={"Origin": "https://evil.example"})
    assert answer.complete
    assert "access-control-allow-origin" not in answer.headers
