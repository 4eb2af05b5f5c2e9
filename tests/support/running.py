"""A gateway for tests: one worker inside the test's own loop, or the real process."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import logging
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml
from client import Answer, Client, ask
from ports import free_port
from prometheus_client.parser import text_string_to_metric_families

import proxy
from core.loading import load
from loadtest.replica.options import DEMO_MODEL
from proxy.listen.sockets import bind_all
from proxy.serve import app
from proxy.serve.config import Config
from proxy.serve.supervise.worker import Stop
from proxy.serve.throwaway import CertificateFiles, Issuer, make_certificate

ROOT = Path(proxy.__file__).parent.parent
SHARED = ROOT.parent / "shared"
AUDIENCE = "headrace-test"
NEVER_TOO_BUSY = {"memory": "off", "loop_lag_s": "off"}
"""For `listen.overload`: the tests are part of what the machine has to do."""

Document = dict[str, Any]


def base_config(replicas: Sequence[str], **sections: Any) -> Document:
    """No TLS, no authentication, one model with the demo's tokenizer; `sections` replace."""
    document: Document = {
        "listen": {
            "addresses": ["127.0.0.1:0"],
            "tls": "off",
            "health_path": "/healthz",
            "overload": NEVER_TOO_BUSY,
        },
        "auth": "none",
        "workers": 1,
        "models": [
            {
                "name": "demo",
                "tokenizer": str(DEMO_MODEL / "tokenizer.json"),
                "chat_template": str(DEMO_MODEL / "chat_template.jinja"),
                "max_model_len": 32_768,
            }
        ],
        "replicas": [
            {"url": url, "model": "demo", "id": f"r{n}"} for n, url in enumerate(replicas)
        ],
        "log": {"access": "off"},
    }
    return {**document, **sections}


def parse(document: Document, folder: Path) -> Config:
    path = folder / "headrace.yaml"
    path.write_text(yaml.safe_dump(document))
    return load(str(path), Config)


class InProcess:
    """One worker in this loop: `async with InProcess(document, tmp_path) as gateway`."""

    def __init__(self, document: Document, folder: Path) -> None:
        self._level = logging.getLogger("headrace").level  # of this process, so of other tests too
        self.config = parse(document, folder)
        self.prepared = app.prepare(self.config)
        self.stop = Stop()
        admin = self.config.admin.address.parsed if self.config.admin else None
        self.sockets = bind_all([a.parsed for a in self.config.listen.addresses], admin)
        self.worker = app.Worker(self.prepared, 0)
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        port: int = self.sockets.listen[0].address.port
        return port

    @property
    def admin_port(self) -> int:
        assert self.sockets.admin is not None
        return self.sockets.admin.address.port

    def metric(self, name: str, *labels: str) -> float:
        return self.worker.metrics.value(name, *labels)

    async def __aenter__(self) -> InProcess:
        ready = asyncio.Event()
        self._task = asyncio.ensure_future(self.worker.run(self.sockets, self.stop, ready.set))
        waiting = asyncio.ensure_future(ready.wait())
        await asyncio.wait([self._task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._task.done():
            self._task.result()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._task is not None
        self.stop.set()
        await asyncio.wait_for(self._task, 60)
        self.sockets.close()
        logging.getLogger("headrace").setLevel(self._level)


class Process:
    """`headrace serve` as a process of its own; `with Process(document) as gateway`.

    It listens on `port` of 127.0.0.1 and on whatever else `document` names. Its folder is gone
    after the block.
    """

    def __init__(self, document: Document) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-"))
        self.access_path = self.folder / "access.jsonl"
        self.port, self.admin_port = free_port(), free_port()
        listen = dict(document["listen"])
        others = [place for place in listen["addresses"] if place != "127.0.0.1:0"]
        listen["addresses"] = [f"127.0.0.1:{self.port}", *others]
        self.document = {
            **document,
            "listen": listen,
            "admin": {"address": f"127.0.0.1:{self.admin_port}"},
            "log": {"access": str(self.access_path)},
            "run_dir": str(self.folder / "run"),
            "propagation_s": document.get("propagation_s", 0),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.prefix: list[str] = []
        """A command that runs the command."""
        self._options: tuple[str, ...] = ()
        self._errors = "stderr"

    def __repr__(self) -> str:
        return f"<Process on {self.port}>"

    def replacement(self) -> Process:
        """One that takes its place; with the same configuration unless `document` is changed."""
        newer = copy.copy(self)
        newer.document = dict(self.document)
        newer._process = None
        newer._options = ("--replace",)
        newer._errors = self._errors + "-"
        return newer

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def workers(self) -> list[int]:
        """The pids of its workers, in the order in which they were started."""
        return [pid for pid in self._children() if not _is_core(pid)]

    @property
    def core(self) -> int:
        """The pid of its core; 0: there is none."""
        return next(filter(_is_core, self._children()), 0)

    def _children(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return sorted(int(pid) for pid in children.split() if not _is_dead(int(pid)))

    def start(self) -> None:
        path = self.folder / "headrace.yaml"
        path.write_text(yaml.safe_dump(self.document))
        command = [sys.executable, "-m", "proxy.serve", "serve"]
        with open(self.folder / self._errors, "ab") as errors:
            self._process = subprocess.Popen(
                [*self.prefix, *command, "-c", str(path), *self._options],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def wait_listening(self, timeout_s: float = 60.0) -> None:
        give_up_at = time.monotonic() + timeout_s
        while b"listening on" not in self.stderr():
            assert self._process is not None
            assert self._process.poll() is None, self.stderr()
            assert time.monotonic() < give_up_at, self.stderr()
            time.sleep(0.02)

    def stderr(self) -> bytes:
        return (self.folder / self._errors).read_bytes()

    def records(self) -> list[Document]:
        """The access log so far."""
        with contextlib.suppress(FileNotFoundError):
            return [json.loads(line) for line in self.access_path.read_bytes().splitlines()]
        return []

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def ended(self, timeout_s: float = 60.0) -> int:
        """The exit status, once it has one. Blocks: use a thread when the loop has work."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def stop(self) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def __enter__(self) -> Process:
        self.start()
        try:
            self.wait_listening()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        if not self._options:
            shutil.rmtree(self.folder, ignore_errors=True)


def _is_dead(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def _is_core(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text() == "headrace-core\n"
    return False


class Caller:
    """A client of a `Process` with TLS and tokens: one tenant of `identity`."""

    def __init__(
        self, gateway: Process, identity: Identity, tenant: str = "acme", **claims: Any
    ) -> None:
        self.gateway = gateway
        self.context = identity.client_context()
        self.token = identity.issuer.token(tenant, **claims)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    async def open(self) -> Client:
        return await Client.open(self.gateway.port, self.context)

    def send(self, client: Client, document: Any, **options: Any) -> None:
        client.send(document, headers={**self.headers, **options.pop("headers", {})}, **options)

    async def ask(self, document: Any, **options: Any) -> Answer:
        """One request on a connection of its own."""
        client = await self.open()
        try:
            self.send(client, document, **options)
            return await client.answer()
        finally:
            client.close()

    async def models(self) -> Answer:
        return await self.ask(b"", method="GET", path="/v1/models")


async def admin(gateway: Process, path: str) -> Answer:
    """A page of the admin listener."""
    return await ask(gateway.admin_port, b"", method="GET", path=path)


async def metric(gateway: Process, name: str, **labels: str) -> float:
    """A sample of /metrics; 0 when there is none."""
    page = (await admin(gateway, "/metrics")).body.decode()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    return 0.0


async def eventually(condition: Callable[[], Awaitable[Any]], within_s: float = 30.0) -> Any:
    """What `condition` returns once it is true."""
    give_up_at = time.monotonic() + within_s
    while not (found := await condition()):
        assert time.monotonic() < give_up_at, "not in time"
        await asyncio.sleep(0.02)
    return found


class Identity:
    """A certificate, and tokens whose key set is a file."""

    def __init__(self, folder: Path) -> None:
        self.files: CertificateFiles = make_certificate(folder)
        self.issuer = Issuer("https://issuer.test", AUDIENCE)
        self.key_set_path = folder / "jwks.json"
        self.publish()

    def publish(self) -> None:
        partial = self.key_set_path.with_suffix(".part")
        partial.write_bytes(self.issuer.key_set())
        os.replace(partial, self.key_set_path)

    @property
    def tls(self) -> Document:
        return {"certificate": str(self.files.certificate), "key": str(self.files.key)}

    @property
    def auth(self) -> Document:
        return {
            "issuers": [
                {
                    "issuer": self.issuer.issuer,
                    "audiences": [AUDIENCE],
                    "jwks": {"file": str(self.key_set_path)},
                    "claims": {"tenant": "tenant", "tier": "plan", "models": "models"},
                }
            ]
        }

    def config(self, replicas: Sequence[str], **sections: Any) -> Document:
        """TLS and tokens on; the rest as in `base_config`."""
        document = base_config(replicas, auth=self.auth, **sections)
        document["listen"] = {**document["listen"], "tls": self.tls}
        return document

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.files.authority))
