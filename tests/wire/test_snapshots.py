"""A worker takes new configurations while it serves: client, gateway and replicas in one loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from client import Answer, Client, ask, chat, events
from running import Document, Identity, InProcess, base_config

from auth.authenticator import Authenticator
from backend.member import Member
from backend.target import Target
from core import tasks
from core.errors import ConfigError
from loadtest.replica import FakeReplica
from proxy.serve import snapshots
from proxy.serve.commands import check
from proxy.serve.snapshot import Snapshot
from ratelimit.limiter import Limiter
from routing.prompter import Prompter

FAST = {"health": {"interval_s": 0.05, "timeout_s": 1.0}, "metrics": "off"}


@asynccontextmanager
async def serving(
    folder: Path, replicas: int = 2, **sections: Any
) -> AsyncIterator[tuple[Gateway, list[FakeReplica]]]:
    async with contextlib.AsyncExitStack() as stack:
        fakes = [await stack.enter_async_context(FakeReplica(token_ms=5)) for _ in range(replicas)]
        sections.setdefault("upstream", FAST)
        document = base_config([fake.url for fake in fakes], **sections)
        yield Gateway(await stack.enter_async_context(InProcess(document, folder)), document), fakes


class Gateway:
    """`document` is the configuration in use; `reload(**sections)` replaces sections of it."""

    def __init__(self, inner: InProcess, document: Document) -> None:
        self.inner = inner
        self.document = document
        self.port = inner.port
        self.worker = inner.worker
        self.path = "/nowhere/headrace.yaml"

    async def stage(self, **sections: Any) -> None:
        # With the addresses that it has: they cannot change.
        text = yaml.safe_dump({**self.document, **sections}).encode()
        await self.worker.stage(text, self.path)

    async def reload(self, **sections: Any) -> None:
        await self.stage(**sections)
        self.worker.commit()
        self.document = {**self.document, **sections}

    def metric(self, name: str, *labels: str) -> float:
        return self.inner.metric(name, *labels)

    @property
    def open_snapshots(self) -> float:
        return self.metric("headrace_snapshots_open")

    async def reasons(self) -> list[str]:
        return self.worker._report()


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


class Live:
    """A stream that goes on."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.answer = Answer(0)

    @classmethod
    async def begin(cls, port: int, document: Any, **options: Any) -> Live:
        live = cls(await Client.open(port))
        live._client.send(document, **options)
        live.answer = await live._client.head()
        live.answer.body = await live._client.chunk() or b""
        return live

    async def end(self) -> Answer:
        while (chunk := await self._client.chunk()) is not None:
            self.answer.body += chunk
            if not chunk:
                self.answer.complete = True
                break
        self._client.close()
        return self.answer


def replica(fake: FakeReplica, replica_id: str, **fields: Any) -> Document:
    return {"url": fake.url, "model": "demo", "id": replica_id, **fields}


async def test_a_stream_goes_on_over_any_change_and_new_requests_see_it(tmp_path: Path) -> None:
    identity = Identity(tmp_path)
    token = {"Authorization": f"Bearer {identity.issuer.token('acme')}"}
    async with (
        contextlib.AsyncExitStack() as stack,
        serving(tmp_path, auth=identity.auth) as (gateway, fakes),
    ):
        question = chat("Tell me of the mill", max_tokens=60)
        direct = await ask(fakes[0].port, question)
        live = await Live.begin(gateway.port, question, headers=token)
        model = {**gateway.document["models"][0], "name": "other", "aliases": ["alias"]}
        other = await stack.enter_async_context(FakeReplica(model="other"))
        await gateway.reload(
            auth="none",
            models=[model],
            replicas=[{**replica(other, "new"), "model": "other"}],
            limits={"rules": [{"name": "one", "limit": 1}]},
            routing={"block_tokens": 128},
            upstream={**FAST, "retries": {"max_tries": 1}},
            listen={**gateway.document["listen"], "health_path": "/up"},
            log={"access": "off", "level": "error"},
        )
        assert gateway.open_snapshots == 2
        for asked, status in (("demo", 404), ("alias", 200), ("other", 429)):
            assert (await ask(gateway.port, {**chat(), "model": asked})).status == status, asked
        assert (await ask(gateway.port, b"", method="GET", path="/up")).status == 200
        answer = await live.end()
        assert answer.complete
        assert answer.text == direct.text
        assert len(events(answer.body)) == len(events(direct.body))
        await until(lambda: gateway.open_snapshots == 1)
        assert gateway.metric("headrace_config_generation", "0") == 2
        assert gateway.metric("headrace_failures_total", "relay", "client_closed") == 0


async def test_a_bad_configuration_is_refused_whole_in_the_words_of_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(tmp_path) as (gateway, _):
        live = await Live.begin(gateway.port, chat(max_tokens=40))
        state = _state(gateway)
        bad: list[dict[str, Any]] = [
            {"models": [{"name": "demo", "tokenizer": str(tmp_path / "none.json")}]},
            {"models": [{"name": "demo", "tokenizer": __file__}], "limits": {"rules": []}},
            {"replicas": [{"url": "ftp://x", "model": "nobody"}], "routing": {"polcy": 1}},
            {"replicas": [{"url": "http://x", "model": "demo", "api_key": "env:NOT_THERE"}]},
            {"limits": {"rules": [{"name": "r"}]}},
        ]
        for sections in bad:
            with pytest.raises(ConfigError) as refused:
                await gateway.stage(**sections)
            path = tmp_path / "bad.yaml"
            path.write_text(yaml.safe_dump({**gateway.document, **sections}))
            with pytest.raises(ConfigError) as checked:
                check(_arguments(str(path)))
            assert str(refused.value) == str(checked.value)
            assert _state(gateway) == state
            gateway.worker.commit()  # of nothing
            assert _state(gateway) == state
        with pytest.raises(ConfigError, match="not valid YAML"):
            await gateway.worker.stage(b"{", gateway.path)
        with pytest.raises(ConfigError, match=r"\$\.workers: was 1 and is 2; it needs a restart"):
            await gateway.stage(workers=2)
        assert _state(gateway) == state
        assert (await live.end()).complete
        assert (await ask(gateway.port, chat())).complete
        capsys.readouterr()


async def test_what_was_staged_and_dropped_has_no_effect(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, fakes):
        state = _state(gateway)
        running = _lasting_tasks()
        extra = replica(fakes[0], "extra", weight=2.0)
        for _ in range(3):
            await gateway.stage(
                replicas=[*gateway.document["replicas"], extra],
                auth={"issuers": [_issuer(tmp_path, Identity(tmp_path), "a")]},
                log={"access": str(tmp_path / "access.jsonl")},
                limits={"rules": [{"name": "one", "limit": 1}]},
            )
            assert (await ask(gateway.port, chat())).complete
            assert len(_lasting_tasks()) > len(running)
            gateway.worker.drop()
        gateway.worker.drop()
        gateway.worker.commit()
        await until(lambda: _lasting_tasks() == running)
        assert _state(gateway) == state
        assert (await ask(gateway.port, chat())).complete


def _state(gateway: Gateway) -> list[object]:
    snapshot = gateway.worker._snapshots.current
    registry, pool = gateway.worker._replicas.registry, gateway.worker._replicas.pool
    return [
        *(snapshot, snapshot.prepared.config, gateway.open_snapshots),
        *(registry.models(), list(registry.entries), list(pool.targets)),
        gateway.metric("headrace_config_generation", "0"),
    ]


def _arguments(path: str) -> Any:
    class Arguments:
        config = path

    return Arguments()


def _issuer(folder: Path, identity: Identity, name: str) -> Document:
    path = folder / f"{name}.json"
    if not path.exists():
        path.write_bytes(identity.issuer.key_set())
    return {"issuer": name, "audiences": ["x"], "jwks": {"file": str(path)}}


async def test_parts_that_have_not_changed_are_carried_over(tmp_path: Path) -> None:
    identity = Identity(tmp_path)
    limits = {"rules": [{"name": "r", "limit": 5}]}
    async with serving(tmp_path, auth=identity.auth, limits=limits) as (gateway, fakes):
        token = {"Authorization": f"Bearer {identity.issuer.token('acme')}"}
        history = "We were speaking about rivers, mills and turbines at length. " * 30
        for _ in range(2):
            assert (await ask(gateway.port, chat(history), headers=token)).complete
        before = gateway.worker._snapshots.current
        registry = gateway.worker._replicas.registry
        connects = gateway.metric("headrace_upstream_connects_total", "r0", "ok")
        await gateway.reload(log={"access": "off", "level": "warning"})
        await gateway.reload(replicas=[*gateway.document["replicas"], replica(fakes[0], "extra")])
        after = gateway.worker._snapshots.current
        assert after is not before
        for name in ("authenticator", "limiter", "budget", "observer"):
            assert getattr(after, name) is getattr(before, name), name
        assert after.prepared.prompter is before.prepared.prompter
        cached = gateway.metric("headrace_auth_total", "cached")
        answer = await ask(gateway.port, chat(history), headers=token)
        assert gateway.metric("headrace_auth_total", "cached") == cached + 1
        assert answer.headers["x-ratelimit-remaining-requests"] == "2"
        assert max(r.cached_tokens for fake in fakes for r in fake.requests) > 100
        assert sorted(len(fake.requests) for fake in fakes) == [0, 3]
        assert gateway.metric("headrace_upstream_connects_total", "r0", "ok") <= connects + 1
        assert registry.ready() is None


async def test_trust_that_was_taken_away_ends_at_once(tmp_path: Path) -> None:
    identity = Identity(tmp_path)
    async with serving(tmp_path, auth=identity.auth) as (gateway, _):
        token = {"Authorization": f"Bearer {identity.issuer.token('acme')}"}
        assert (await ask(gateway.port, chat(), headers=token)).status == 200
        live = await Live.begin(gateway.port, chat(max_tokens=40), headers=token)
        issuer = {**identity.auth["issuers"][0], "audiences": ["another"]}
        await gateway.reload(auth={"issuers": [issuer]})
        assert (await ask(gateway.port, chat(), headers=token)).status == 401
        await gateway.reload(auth=identity.auth)
        assert (await ask(gateway.port, chat(), headers=token)).status == 200
        identity.issuer.rotate()
        newer = json.loads(identity.issuer.key_set())["keys"][-1:]
        identity.key_set_path.write_text(json.dumps({"keys": newer}))
        await gateway.reload()  # the same text, another file
        assert (await ask(gateway.port, chat(), headers=token)).status == 401
        assert await gateway.reasons() == []
        assert (await live.end()).complete


async def test_a_removed_replica_gets_nothing_new_and_ends_what_it_has(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, fakes):
        live = await Live.begin(gateway.port, chat("of long ago", max_tokens=60))
        index = 0 if fakes[0].in_flight else 1
        removed, kept = fakes[index], fakes[1 - index]
        await gateway.reload(replicas=[replica(kept, f"r{1 - index}")])
        seen = len(removed.requests)
        for number in range(6):
            assert (await ask(gateway.port, chat(f"question {number}"))).complete
        assert len(removed.requests) == seen
        assert (await live.end()).complete
        await until(lambda: gateway.open_snapshots == 1)
        router = gateway.worker._replicas.router
        pool = gateway.worker._replicas.pool
        await until(lambda: pool.open_connections() <= 1, 3.0)
        router.publish()
        await until(lambda: f"r{index}" not in _replicas_shown(gateway), 3.0)
        assert f"r{1 - index}" in _replicas_shown(gateway)


def _replicas_shown(gateway: Gateway) -> set[str]:
    families = gateway.worker.metrics.board.collect().values()
    return {
        labels[family.entry.labels.index("replica")]
        for family in families
        if "replica" in family.entry.labels
        for labels in family.series
    }


async def test_an_exchange_without_a_replica_yet_ends_with_the_model_it_began_with(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (gateway, fakes):
        snapshot = gateway.worker._snapshots.current
        gate = asyncio.Event()
        reserve = snapshot.limiter.reserve

        async def slow(*args: Any, **asked: Any) -> Any:
            await gate.wait()
            return await reserve(*args, **asked)

        snapshot.limiter.reserve = slow  # type: ignore[method-assign]
        waiting = asyncio.ensure_future(ask(gateway.port, chat()))
        await until(lambda: snapshot.pipeline.in_flight == 1)
        model = {**gateway.document["models"][0], "name": "other"}
        for name in ("x", "y"):
            await gateway.reload(
                models=[model], replicas=[{**replica(fakes[0], name), "model": "other"}]
            )
        snapshot.limiter.reserve = reserve  # type: ignore[method-assign]
        assert (await ask(gateway.port, chat())).status == 404
        registry = gateway.worker._replicas.registry
        assert set(registry.models()) == {"demo", "other"}
        gate.set()
        answer = await waiting
        assert answer.complete
        assert answer.text
        await until(lambda: registry.models() == ("other",))
        assert list(gateway.worker._replicas.pool.targets) == ["y"]


async def test_a_retry_goes_to_a_replica_that_is_there_now(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, fakes):
        await gateway.reload(replicas=[replica(fakes[0], "old")])
        fakes[0].behaviour = "stall_first=30"
        waiting = asyncio.ensure_future(ask(gateway.port, chat()))
        await until(lambda: len(fakes[0].requests) == 1)
        await gateway.reload(replicas=[replica(fakes[1], "new")])
        fakes[0].die()
        answer = await waiting
        assert answer.complete
        assert answer.text
        assert len(fakes[1].requests) == 1
        assert gateway.metric("headrace_retries_total", "upstream_reset") == 1
        assert "old" not in gateway.worker._replicas.registry.entries


async def test_another_server_under_the_same_id_is_not_blamed(tmp_path: Path) -> None:
    async with serving(tmp_path, replicas=2) as (gateway, fakes):
        await gateway.reload(replicas=[replica(fakes[0], "gpu")])
        lives = [await Live.begin(gateway.port, chat(max_tokens=200)) for _ in range(8)]
        await gateway.reload(replicas=[replica(fakes[1], "gpu")])
        fakes[0].die()
        for live in lives:
            assert not (await live.end()).complete
        await until(lambda: gateway.open_snapshots == 1)
        assert gateway.metric("headrace_replica_healthy", "gpu") == 1
        assert (await ask(gateway.port, chat())).complete
        assert len(fakes[1].requests) == 1


async def test_it_waits_for_what_is_new_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as (gateway, fakes):
        fakes[1].behaviour = "slow_health=0.3"
        model = {**gateway.document["models"][0], "name": "new"}
        sections: dict[str, Any] = {
            "models": [*gateway.document["models"], model],
            "replicas": [replica(fakes[0], "r0"), {**replica(fakes[1], "n"), "model": "new"}],
        }
        await until(lambda: gateway.worker._report() == [])
        began = asyncio.get_running_loop().time()
        await gateway.stage(**sections)
        assert asyncio.get_running_loop().time() - began >= 0.25
        gateway.worker.commit()
        assert await gateway.reasons() == []
        monkeypatch.setattr(snapshots, "READY_S", 0.1)
        await fakes[1].close()
        dead = {"url": "http://127.0.0.1:1", "model": "new", "id": "dead"}
        await gateway.reload(models=sections["models"], replicas=[replica(fakes[0], "r0"), dead])
        down = ["model new: no usable replica, all 1 are down"]
        await until(lambda: gateway.worker._report() == down)
        await gateway.reload(replicas=[replica(fakes[0], "r0"), dead])  # no wait: no worse
        assert (await ask(gateway.port, chat())).complete


async def test_settings_of_the_edge_hold_from_the_next_request_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, _):
        client = await Client.open(gateway.port)
        assert (await client.ask(chat())).complete
        access = tmp_path / "access.jsonl"
        listen = gateway.document["listen"]
        await gateway.reload(
            listen={**listen, "limits": {"max_body_bytes": 1024}, "cors": {"origins": ["*"]}},
            log={"access": str(access)},
        )
        answer = await client.ask(chat(), headers={"Origin": "https://app.example"})
        assert answer.headers["access-control-allow-origin"] == "*"
        client.close()
        assert (await ask(gateway.port, chat("x" * 2000))).status == 413
        await until(lambda: access.exists() and access.read_text().count("\n") == 2)


async def test_a_hundred_reloads_leave_nothing_behind(tmp_path: Path) -> None:
    identity = Identity(tmp_path)
    async with serving(tmp_path, auth=identity.auth) as (gateway, fakes):
        token = {"Authorization": f"Bearer {identity.issuer.token('acme')}"}
        others = [_issuer(tmp_path, identity, f"i{number}") for number in range(5)]
        broken: list[Answer] = []
        done = asyncio.Event()

        async def caller(number: int) -> int:
            count = 0
            while not done.is_set():
                text = f"caller {number} asks {count}"
                answer = await ask(gateway.port, chat(text, max_tokens=5), headers=token)
                if not (answer.complete and answer.status == 200):
                    broken.append(answer)
                count += 1
                await asyncio.sleep(0.01)
            return count

        def versions(number: int) -> dict[str, Any]:
            fake = fakes[number % 2]
            return {
                "replicas": [replica(fakes[0], "r0"), replica(fake, f"pod-{number}")],
                "limits": {"rules": [{"name": f"r{number % 3}", "limit": 10**6}]},
                "models": [{**gateway.document["models"][0], "aliases": [f"a{number % 2}"]}],
                "routing": {"block_tokens": 64 + 64 * (number % 2)},
                "auth": {"issuers": [*identity.auth["issuers"], others[number % 5]]},
            }

        async def settle() -> None:
            """The same configuration each time, with both replicas known to the router."""
            await gateway.reload(**versions(0))
            for number in range(4):
                answer = await ask(gateway.port, chat(f"{number}"), headers=token)
                assert answer.complete

        await settle()
        start, alive = await _resources(gateway), _alive()
        callers = [asyncio.ensure_future(caller(number)) for number in range(4)]
        for number in range(1, 101):
            if number % 10 == 5:
                with pytest.raises(ConfigError):
                    await gateway.stage(models=[{"name": "demo", "tokenizer": __file__}])
            else:
                await gateway.reload(**versions(number))
        done.set()
        counts = await asyncio.gather(*callers)
        assert broken == []
        assert sum(counts) > 100
        await settle()
        await until(lambda: gateway.open_snapshots == 1)
        end = start
        for _ in range(100):
            await asyncio.sleep(0.05)
            if (end := await _resources(gateway)) == start:
                break
        assert end == start
        assert all(count <= alive[kind] for kind, count in _alive().items())
        router = gateway.worker._replicas.router
        assert gateway.metric("headrace_ledger_underflow_total") == 0
        for member in router._models["demo"].known():
            account = member.account
            assert (account.pending_tokens, account.in_flight, account.live_tokens) == (0, 0, 0)


async def _resources(gateway: Gateway) -> dict[str, Any]:
    """What may leak. The connections of clients and warm ones come and go."""
    gc.collect()
    gateway.worker._replicas.pool._tick(asyncio.get_running_loop().time())
    gateway.worker._replicas.router.publish()
    kinds = [os.readlink(f"/proc/self/fd/{fd}") for fd in _descriptors()]
    return {
        "tasks": _lasting_tasks(),
        "files": sorted(kind for kind in kinds if not kind.startswith("socket:")),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "replicas": _replicas_shown(gateway),
        "snapshots": gateway.open_snapshots,
    }


def _lasting_tasks() -> list[str]:
    names = sorted(task.get_name() for task in tasks.running())
    return [name for name in names if name not in ("pool-dial", "exchange")]


def _descriptors() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            os.readlink(f"/proc/self/fd/{fd}")
            found.append(fd)
    return found


def _alive() -> dict[type, int]:
    gc.collect()
    counts = dict.fromkeys((Snapshot, Authenticator, Limiter, Prompter, Member, Target), 0)
    for thing in gc.get_objects():
        if type(thing) in counts:
            counts[type(thing)] += 1
    return counts
