from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from backend import token_probes
from backend.config import ReplicaConfig, UpstreamConfig
from backend.token_probes import TokenProbes
from core.errors import UpstreamUnreachable
from core.prompt import Sample, Samples

CHATS = [
    Sample({"messages": [{"role": "user", "content": text}]}, ids)
    for text, ids in (("a", [1]), ("b", [2, 3]))
]
SAMPLES = Samples(CHATS, Sample({"prompt": "c"}, [4]))
AUTO = UpstreamConfig(token_ids="auto")
ONE = ReplicaConfig(url="http://127.0.0.1:1", model="m", id="r")


class Replica:
    """Instead of an `Asker`: takes ids for chats."""

    id = "r"
    asked = 0
    status: int | None = 200

    def __init__(self, dialer: object) -> None:
        pass

    async def post(
        self, path: str, body: bytes, timeout_s: float, max_bytes: int
    ) -> tuple[int, bytes]:
        Replica.asked += 1
        if Replica.status is None:
            raise UpstreamUnreachable("Away.")
        document = orjson.loads(body)
        ids = {"a": [1], "b": [2, 3], "c": [4]}
        if (params := document.get("kv_transfer_params")) is not None:
            used = params["prompt_token_ids"]
        elif "messages" in document:
            used = ids[document["messages"][0]["content"]]
        else:
            prompt = document["prompt"]
            used = ids[prompt] if isinstance(prompt, str) else prompt
        usage = {"prompt_tokens": len(used)}
        return Replica.status, orjson.dumps(
            {"choices": [{}], "prompt_token_ids": used, "usage": usage}
        )


@pytest.fixture(autouse=True)
def replica(monkeypatch: pytest.MonkeyPatch) -> type[Replica]:
    monkeypatch.setattr(token_probes, "Asker", Replica)
    monkeypatch.setattr(token_probes, "_FIRST_S", 0.0)
    Replica.asked, Replica.status = 0, 200
    return Replica


def use(probes: TokenProbes, *replicas: ReplicaConfig, upstream: UpstreamConfig = AUTO) -> None:
    probes.use(replicas, upstream=upstream, contexts={}, samples_of=lambda model: SAMPLES)


async def known(probes: TokenProbes, *, yes: bool = True) -> Any:
    async with asyncio.timeout(60):
        while ((found := probes.accepted("r")) is not None) is not yes:
            await asyncio.sleep(0)
    return found


async def test_a_replica_is_asked_once_it_is_started() -> None:
    probes = TokenProbes()
    use(probes, ONE)
    assert probes.accepted("r") is None
    probes.start()
    assert (await known(probes))[:2] == ("kv_transfer_params", True)
    await probes.close()


async def test_nobody_is_asked_unless_it_is_asked_for() -> None:
    probes = TokenProbes()
    probes.start()
    use(probes, ONE, upstream=UpstreamConfig())
    use(probes, ReplicaConfig(url="http://127.0.0.1:1", model="m", id="r", role="prefill"))
    assert repr(probes) == "<TokenProbes {}>"
    use(probes, ReplicaConfig(url="http://127.0.0.1:1", model="m", id="r", engine="openai"))
    assert repr(probes) == "<TokenProbes {}>"
    probes.use([ONE], upstream=AUTO, contexts={}, samples_of=lambda model: None)
    await asyncio.sleep(0)
    assert probes._probes == {}
    await probes.close()


@pytest.mark.parametrize("status", [None, 503, 429])
async def test_one_that_cannot_tell_is_asked_until_it_can(status: int | None) -> None:
    Replica.status = status
    probes = TokenProbes()
    probes.start()
    use(probes, ONE)
    async with asyncio.timeout(60):
        while Replica.asked < 3:
            await asyncio.sleep(0)
    assert probes.accepted("r") is None
    Replica.status = 200
    assert await known(probes)
    await probes.close()


async def test_one_that_has_refused_is_asked_anew() -> None:
    probes = TokenProbes()
    probes.start()
    use(probes, ONE)
    await known(probes)
    before, Replica.status = Replica.asked, 400
    probes.refused("r")
    probes.refused("unknown")
    assert probes.accepted("r") is None
    assert (await known(probes))[:2] == (None, False)
    assert Replica.asked > before
    await probes.close()


async def test_what_is_known_stays_while_the_replica_does() -> None:
    probes = TokenProbes()
    probes.start()
    use(probes, ONE)
    await known(probes)
    before = Replica.asked
    use(probes, ONE)
    assert probes.accepted("r") is not None
    use(probes, ReplicaConfig(url="http://127.0.0.1:2", model="m", id="r"))
    assert probes.accepted("r") is None
    await known(probes)
    assert Replica.asked == 2 * before
    use(probes)
    assert probes.accepted("r") is None
    await probes.close()
