"""A changed configuration in the running process: taken whole by all workers, or not at all."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from client import chat
from running import ROOT, Caller, Identity, Process, admin, eventually, metric

from loadtest.replica import FakeReplica
from proxy.serve.throwaway import make_certificate

pytestmark = pytest.mark.asyncio(loop_scope="module")


class House:
    """A gateway of two workers with two replicas."""

    def __init__(self, gateway: Process, identity: Identity, replicas: list[FakeReplica]) -> None:
        self.gateway = gateway
        self.caller = Caller(gateway, identity)
        self.replicas = replicas
        self.path = gateway.folder / "headrace.yaml"

    def write(self, **sections: Any) -> None:
        """The first configuration with these sections replaced."""
        write(self.path, yaml.safe_dump({**self.gateway.document, **sections}))

    async def command(self, name: str, path: Path | None = None) -> tuple[int, str, str]:
        return await asyncio.to_thread(headrace, name, "-c", str(path or self.path))

    async def models(self) -> list[str]:
        """What a new connection is told."""
        return [model["id"] for model in (await self.caller.models()).json()["data"]]

    async def config(self) -> Any:
        """As the admin page tells it."""
        return (await admin(self.gateway, "/config")).json()


def write(path: Path, text: str) -> None:
    partial = path.with_suffix(".part")
    partial.write_text(text)
    os.replace(partial, path)


def headrace(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "proxy.serve", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(identity: Identity) -> AsyncIterator[House]:
    async with FakeReplica() as one, FakeReplica() as two:
        document = identity.config([one.url, two.url], workers=2, reload={"watch": False})
        with Process(document) as gateway:
            yield House(gateway, identity, [one, two])


def named(house: House, alias: str) -> list[Any]:
    (model,) = house.gateway.document["models"]
    return [{**model, "aliases": [alias]}]


async def test_headrace_reload_waits_until_all_workers_have_it(house: House) -> None:
    before = await house.config()
    for number in range(2):
        alias = f"name-{number}"
        house.write(models=named(house, alias))
        code, out, err = await house.command("reload")
        assert (code, err) == (0, "")
        generation = before["generation"] + number + 1
        assert out == f"OK: generation {generation} is in force; changed: $.models\n"
        for _ in range(4):
            assert alias in await house.models()
    code, out, _ = await house.command("reload")
    assert (code, out.endswith("changed: nothing\n")) == (0, True)
    after = await house.config()
    assert after["last_reload"]["result"] == "applied"
    assert after["generation"] == before["generation"] + 3


async def test_a_bad_file_is_refused_in_the_words_of_check(house: House) -> None:
    before = await house.config()
    names = await house.models()
    document = {**house.gateway.document, "drain_z": 1, "workers": "many"}
    write(house.path, yaml.safe_dump(document))
    code, out, err = await house.command("reload")
    assert (code, out) == (2, "")
    assert err.count("\n") == 2
    assert await house.command("check") == (2, "", err)
    after = await house.config()
    assert after["generation"] == before["generation"]
    assert after["last_reload"]["result"] == "refused"
    assert [f"headrace: {reason}" for reason in after["last_reload"]["reasons"]] == err.splitlines()
    assert await house.models() == names
    assert await metric(house.gateway, "headrace_config_reloads_total", result="refused") >= 1
    assert "reload refused (headrace reload)" in house.gateway.stderr().decode()


async def test_what_is_static_needs_a_restart(house: House) -> None:
    house.write(workers=3)
    code, _, err = await house.command("reload")
    assert code == 2
    assert err.startswith("headrace: $.workers: was 2 and is 3; it needs a restart")


async def test_a_hangup_reloads_and_streams_go_on(house: House) -> None:
    client = await house.caller.open()
    house.caller.send(client, chat(max_tokens=100, user="fake:token_ms=10"))
    assert (await client.head()).status == 200
    house.write(models=named(house, "hung-up"))
    house.gateway.signal(signal.SIGHUP)

    async def known() -> bool:
        return "hung-up" in await house.models()

    await eventually(known)
    body = b""
    while chunk := await client.chunk():
        body += chunk
    assert chunk == b"", "a stream was cut"
    assert body.endswith(b"data: [DONE]\n\n")
    client.close()


async def test_nobody_runs_there(house: House, tmp_path: Path) -> None:
    for document, said in (
        ({**house.gateway.document, "run_dir": str(tmp_path / "run")}, "no gateway answers at "),
        (house.gateway.document, f"runs {house.path}"),  # another file than this one
    ):
        path = tmp_path / "headrace.yaml"
        path.write_text(yaml.safe_dump(document))
        code, out, err = await house.command("reload", path)
        assert (code, out) == (1, "")
        assert said in err


async def test_a_second_gateway_does_not_take_the_control_socket(
    house: House, tmp_path: Path
) -> None:
    path = tmp_path / "headrace.yaml"
    document = {**house.gateway.document, "admin": {"address": "127.0.0.1:0"}}
    document["listen"] = {**document["listen"], "addresses": ["127.0.0.1:0"]}
    path.write_text(yaml.safe_dump(document))
    code, _, err = await house.command("serve", path)
    assert code == 2
    assert f"a gateway (pid {house.gateway.pid}) answers at " in err
    code, _, err = await house.command("serve")  # by the same file, to the same addresses
    assert code == 2
    assert "take its place with `headrace serve --replace`" in err
    assert (await house.command("reload"))[0] in {0, 2}


async def test_renewed_certificates_are_noticed(
    identity: Identity, replicas: list[FakeReplica], tmp_path: Path
) -> None:
    """Swapped as Kubernetes does it."""
    for name, files in (("old", identity.files), ("new", make_certificate(tmp_path))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cert.pem").write_bytes(Path(files.certificate).read_bytes())
        (tmp_path / name / "key.pem").write_bytes(Path(files.key).read_bytes())
    (tmp_path / "..data").symlink_to("old")
    mounted = tmp_path / "..data"
    document = identity.config([replica.url for replica in replicas])
    document["listen"]["tls"] = {
        "certificate": str(mounted / "cert.pem"),
        "key": str(mounted / "key.pem"),
    }

    async def generation(gateway: Process) -> int:
        found: int = (await admin(gateway, "/config")).json()["generation"]
        return found

    with Process(document) as gateway:
        assert await generation(gateway) == 1
        (tmp_path / "..new").symlink_to("new")
        os.replace(tmp_path / "..new", tmp_path / "..data")

        async def noticed() -> bool:
            return await generation(gateway) == 2

        await eventually(noticed, 15)
        told = (await admin(gateway, "/config")).json()["last_reload"]["changed"]
        assert set(told) == {str(mounted / "cert.pem"), str(mounted / "key.pem")}
        old = Caller(gateway, identity)
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            await old.open()
