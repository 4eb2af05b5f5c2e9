"""`headrace demo`: the whole gateway on this machine, against two fake replicas.

Makes throw-away keys and certificates in a temporary folder, serves the key set over HTTPS,
starts two fake replicas and an embedded Valkey, writes a configuration with every feature on,
runs `headrace serve` on it and shows each request as the access log tells it.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import ssl
import sys
import tempfile
from pathlib import Path
from typing import Any

import orjson

from proxy.serve.demo_parts import MODEL, Place, make_place, missing, running

try:
    import openai
except ImportError as error:
    raise missing(error) from error

QUESTION = "In one sentence: what does a headrace do?"
_RECORD_S = 5.0
_PHASES = ("auth", "tokenize", "reserve", "route", "connect", "first_token")


def main(arguments: argparse.Namespace) -> int:
    """Until interrupted, or with `--once` until one question was answered."""
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        try:
            return asyncio.run(_run(Path(folder), once=arguments.once, port=arguments.port))
        except (KeyboardInterrupt, asyncio.CancelledError):
            # What was started has ended. A question that was not answered is no success.
            return 130 if arguments.once else 0


async def _run(folder: Path, *, once: bool, port: int) -> int:
    task = asyncio.current_task()
    assert task is not None
    # At any moment, and so that all is given back. What asyncio.run does for SIGINT it leaves out
    # where that was ignored before, as for a shell's job in the background.
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    place = make_place(folder, port)
    async with running(place) as gateway:
        token = place.issuer.token("acme", plan="gold")
        if once:
            return await _ask_once(place, token, gateway)
        _explain(place, token)
        await _show_requests(gateway)
        return 1  # its log ends with the gateway, which nobody asked to end


def _explain(place: Place, token: str) -> None:
    print(f"""
Headrace is serving the model `{MODEL}` from two fake replicas, with TLS 1.3, tokens checked
against a key set, limits in Valkey and prefix-aware routing. The tokenizer is a small one that
the project trained itself. Configuration: {place.config}
What it does now: http://127.0.0.1:{place.admin_port}/ is a live page, beside /metrics and /readyz.
Ctrl-C ends it all.

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
    record = orjson.loads(await asyncio.wait_for(gateway.stdout.readline(), _RECORD_S))
    print(f"\n\n{_describe(record)}")
    for name in _PHASES:
        print(f"  {name:12} {record.get(name + '_ms', 0.0):8.3f} ms")
    return 0 if record["status"] == 200 else 1
