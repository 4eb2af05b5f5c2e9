"""The cheapest upstream that speaks vLLM's stream: `python -m bench.upstream PORT [PORT ...]`.

The first token comes at once; the others as from a real engine: every `STEP_S` (or later, with
many streams) each running stream gets one, so that a proxy meets them one event a read and not in
lumps. `max_tokens` says how many, and the usage event comes when the body asks for it. Nothing is
tokenized and nothing kept: what is measured is what stands in front of it.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Sequence
from typing import cast

import uvloop

STEP_S = 0.002
MOST_PER_S = 16_000
"""Tokens of all streams: with more than 32 of them steps take longer, as a real engine's do."""

_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"vary: Origin\r\ntransfer-encoding: chunked\r\n\r\n"
)
_OPENING = (
    b'data: {"id":"chatcmpl-b1d820c47f589033","object":"chat.completion.chunk",'
    b'"created":1796051236,"model":"demo","choices":['
)


def _chunk(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


_ROLE = _chunk(
    _OPENING + b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
    b'"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}\n\n'
)
_TOKEN = _chunk(
    _OPENING + b'{"index":0,"delta":{"content":" token"},"logprobs":null,'
    b'"finish_reason":null,"token_ids":null}]}\n\n'
)
_LAST_TOKEN = _chunk(
    _OPENING + b'{"index":0,"delta":{"content":" token"},"logprobs":null,'
    b'"finish_reason":"length","stop_reason":null,"token_ids":null}]}\n\n'
)
_USAGE = (
    _OPENING + b'],"usage":{"prompt_tokens":100,"total_tokens":%d,"completion_tokens":%d,'
    b'"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":0}},'
    b'"system_fingerprint":"vllm-0.32.0-37689081"}\n\n'
)
_END = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
_METRICS = (
    b'vllm:num_requests_running{engine="0",model_name="demo"} 0.0\n'
    b'vllm:num_requests_waiting{engine="0",model_name="demo"} 0.0\n'
    b'vllm:kv_cache_usage_perc{engine="0",model_name="demo"} 0.0\n'
    b'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="8192"} 1.0\n'
)
_MODELS = b'{"object":"list","data":[{"id":"demo","object":"model","max_model_len":32768}]}'
_PAGES = {b"/health": b"", b"/metrics": _METRICS, b"/v1/models": _MODELS}

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_TOKENS = re.compile(rb'"max_tokens": *(\d+)')
_WANTS_USAGE = re.compile(rb'"include_usage": *true')


class Engine:
    """The steps: one timer for all streams."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._running: list[Upstream] = []
        self._next_at = 0.0

    def __repr__(self) -> str:
        return f"<Engine {len(self._running)} streams>"

    def add(self, stream: Upstream) -> None:
        self._running.append(stream)
        if len(self._running) == 1:
            self._next_at = self._loop.time() + STEP_S
            self._loop.call_at(self._next_at, self._step)

    def _step(self) -> None:
        self._running = [stream for stream in self._running if stream.token()]
        if self._running:
            step_s = max(STEP_S, len(self._running) / MOST_PER_S)
            self._next_at = max(self._next_at + step_s, self._loop.time())
            self._loop.call_at(self._next_at, self._step)


class Upstream(asyncio.Protocol):
    """One connection: a request at a time, never pipelined."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._buffer = b""
        self._left = self._tokens = 0
        self._usage = self._gone = False

    def __repr__(self) -> str:
        return f"<Upstream {self._left} tokens to go>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True

    def data_received(self, data: bytes) -> None:
        self._buffer = data = self._buffer + data if self._buffer else data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return
        length = _LENGTH.search(data, 0, end + 2)
        body = end + 4
        if len(data) < body + (int(length[1]) if length else 0):
            return
        self._buffer = b""
        if not data.startswith(b"POST "):
            self._page(data)
            return
        tokens = _TOKENS.search(data, body)
        self._left = self._tokens = int(tokens[1]) if tokens else 16
        self._usage = _WANTS_USAGE.search(data, body) is not None
        self._transport.write(_HEAD)
        self._loop.call_soon(self._first)

    def _first(self) -> None:
        if not self._gone:
            self._transport.write(_ROLE)
            if self.token():
                self._engine.add(self)

    def token(self) -> bool:
        """Send one; False when it was the last or nobody listens."""
        if self._gone:
            return False
        self._left -= 1
        if self._left > 0:
            self._transport.write(_TOKEN)
            return True
        self._transport.write(_LAST_TOKEN)
        self._loop.call_soon(self._end)
        return False

    def _end(self) -> None:
        if self._gone:
            return
        if self._usage:
            self._transport.write(_chunk(_USAGE % (100 + self._tokens, self._tokens)))
        self._transport.write(_END)

    def _page(self, request: bytes) -> None:
        page = _PAGES.get(request.split(b" ", 2)[1])
        status = b"404 Not Found" if page is None else b"200 OK"
        page = page or b""
        self._transport.write(
            b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(page), page)
        )


async def serve(ports: Sequence[int]) -> None:
    loop, engine = asyncio.get_running_loop(), Engine()
    for port in ports:
        await loop.create_server(lambda: Upstream(engine), "127.0.0.1", port, backlog=4096)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve([int(port) for port in sys.argv[1:]]))
