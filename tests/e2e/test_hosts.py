"""Two gateways with a worker each, on one Valkey: what one gave a replica the other one goes by."""

from __future__ import annotations

from functools import partial
from typing import Any

from client import Client, ask, chat
from running import Process, base_config, eventually, metric

from loadtest.replica import FakeReplica

QUESTION = {"request": {"model": "demo", "prompt": "where to?"}}


async def in_flight(gateway: Process) -> dict[str, int]:
    """What its worker believes of each replica."""
    answer = await ask(gateway.admin_port, QUESTION, path="/route/explain", method="POST")
    assert answer.status == 200, answer.body
    return {target["replica"]: target["in_flight"] for target in answer.json()["targets"]}


async def test_a_replica_that_another_gateway_has_filled_gets_nothing(valkey: Any) -> None:
    async with FakeReplica() as one, FakeReplica() as two:
        document = base_config(
            [one.url, two.url],
            limits={"store": {"redis": {"url": valkey.url}}},
            routing={"hosts": {"redis": True}, "admission": {"max_waiting": 0}},
        )
        for replica in document["replicas"]:
            replica["max_in_flight"] = 1
        with Process(document) as first, Process(document) as second:
            for gateway in (first, second):
                await eventually(partial(metric, gateway, "headrace_peer_gateways"))
            busy = await Client.open(first.port)
            busy.send(chat("one", user="fake:stall_first=60"))

            async def seen() -> bool:
                return sorted((await in_flight(second)).values()) == [0, 1]

            await eventually(seen)
            filled = max((await in_flight(first)).items(), key=lambda item: item[1])[0]
            client = await Client.open(second.port)
            for _ in range(4):
                assert (await client.ask(chat("two", stream=False, max_tokens=1))).status == 200
            served = one if filled == "r0" else two
            assert len(served.requests) == 1

            busy.close()
            client.close()
            for gateway in (first, second):
                await eventually(partial(free, gateway))


async def free(gateway: Process) -> bool:
    return set((await in_flight(gateway)).values()) == {0}
