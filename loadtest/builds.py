"""Two revisions of the gateway, built and running beside each other. Performs.

Each has a folder and an environment of its own; both get the same replicas and the same
configuration, without TLS, tokens or limits. Nothing of the product is imported: what is run is the
revision's own `headrace serve`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import yaml

from loadtest.replica.options import DEMO_MODEL

_READY_S = 60.0
_ROOT = Path(__file__).parents[1]
_REPLICAS = 2


class CannotBuild(Exception):
    """One sentence."""


@contextlib.contextmanager
def two_gateways(base: str, candidate: str | None) -> Iterator[tuple[str, str]]:
    """The URLs of `base` and of `candidate` (None: the working tree). CannotBuild."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-gate-")))
        trees = [
            stack.enter_context(_tree(reference, folder / name))
            for name, reference in (("base", base), ("candidate", candidate))
        ]
        replicas = [stack.enter_context(_replica()) for _ in range(_REPLICAS)]
        urls = [
            stack.enter_context(_gateway(tree, replicas, folder / f"{number}.yaml"))
            for number, tree in enumerate(trees)
        ]
        yield urls[0], urls[1]


@contextlib.contextmanager
def _tree(reference: str | None, folder: Path) -> Iterator[Path]:
    """A folder with the revision and its environment."""
    if reference is None:
        yield _ROOT
        return
    _call(["git", "worktree", "add", "--detach", "--quiet", str(folder), reference], _ROOT)
    try:
        print(f"building {reference}", file=sys.stderr)
        _call(["make", "--silent", "venv"], folder)
        yield folder
    finally:
        _call(["git", "worktree", "remove", "--force", str(folder)], _ROOT)


def _call(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no words").splitlines()[-1]
        raise CannotBuild(f"`{' '.join(command)}`: {last}")


@contextlib.contextmanager
def _replica() -> Iterator[str]:
    port = _free_port()
    command = [sys.executable, "-m", "loadtest", "replica", "--port", str(port)]
    with _running([*command, "--token-ms", "5", "--prefill-base-ms", "10"], _ROOT):
        url = f"http://127.0.0.1:{port}"
        _wait_for(f"{url}/health")
        yield url


@contextlib.contextmanager
def _gateway(tree: Path, replicas: list[str], path: Path) -> Iterator[str]:
    port, admin = _free_port(), _free_port()
    document = {
        "listen": {"addresses": [f"127.0.0.1:{port}"], "tls": "off"},
        "auth": "none",
        "admin": {"address": f"127.0.0.1:{admin}"},
        "workers": 1,
        "log": {"access": "off"},
        "models": [
            {
                "name": "demo",
                "tokenizer": str(DEMO_MODEL / "tokenizer.json"),
                "chat_template": str(DEMO_MODEL / "chat_template.jinja"),
                "max_model_len": 32_768,
            }
        ],
        "replicas": [{"url": url, "model": "demo"} for url in replicas],
    }
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    python = tree / ".venv" / "bin" / "python"
    if not python.exists():
        raise CannotBuild(f"there is no {python}; `make venv` makes it")
    with _running([str(python), "-m", "proxy.serve", "serve", "-c", str(path)], tree):
        _wait_for(f"http://127.0.0.1:{admin}/readyz")
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def _running(command: list[str], folder: Path) -> Iterator[None]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(url: str) -> None:
    give_up_at = time.monotonic() + _READY_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:  # URLError is one
            pass
        if time.monotonic() > give_up_at:
            raise CannotBuild(f"{url} did not answer within {_READY_S:.0f} s")
        time.sleep(0.1)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
