"""A small HTTP/1.1 client that tells how an answer ended."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass
class Answer:
    """`complete`: the framing said so; otherwise the connection ended in the middle."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    complete: bool = False

    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def text(self) -> str:
        """The content of a streamed or whole chat or completion."""
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            return content(self.json())
        return "".join(content(orjson.loads(data)) for data in events(self.body))


def events(body: bytes) -> list[bytes]:
    """The data of each event but `[DONE]`."""
    found = [part[6:] for part in body.split(b"\n\n") if part.startswith(b"data: ")]
    return [data for data in found if data != b"[DONE]"]


def content(document: dict[str, Any]) -> str:
    text = ""
    for choice in document.get("choices", ()):
        part = choice.get("delta") or choice.get("message") or choice
        text += part.get("content") or part.get("text") or ""
    return text


def chat(text: str = "hello there", **fields: Any) -> dict[str, Any]:
    """A chat request's body."""
    messages = [{"role": "user", "content": text}]
    return {"model": "demo", "messages": messages, "stream": True, **fields}


class Client:
    """One connection. `await Client.open(port)`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(
        cls, port: int, context: ssl.SSLContext | None = None, host: str = "127.0.0.1"
    ) -> Client:
        name = "localhost" if context else None
        return cls(*await asyncio.open_connection(host, port, ssl=context, server_hostname=name))

    def send(
        self,
        document: Any,
        *,
        path: str = "/v1/chat/completions",
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        body = document if isinstance(document, bytes) else orjson.dumps(document)
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def head(self) -> Answer:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")
        answer = Answer(int(first.split(" ")[1]))
        for line in filter(None, lines):
            name, _, value = line.partition(": ")
            answer.headers[name.lower()] = value
        return answer

    async def chunk(self) -> bytes | None:
        """The next chunk, b"" for the last one, None when the connection ended instead."""
        try:
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size + 2)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return data[:-2]

    async def answer(self) -> Answer:
        answer = await self.head()
        length = answer.headers.get("content-length")
        if length is not None:
            answer.body = await self.reader.readexactly(int(length))
            answer.complete = True
            return answer
        while (chunk := await self.chunk()) is not None:
            answer.body += chunk
            if not chunk:
                answer.complete = True
                break
        return answer

    async def ask(self, document: Any, **options: Any) -> Answer:
        self.send(document, **options)
        return await self.answer()

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Close with a reset instead of a FIN."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


async def ask(port: int, document: Any, **options: Any) -> Answer:
    """One request on a connection of its own."""
    client = await Client.open(port, options.pop("context", None))
    try:
        return await client.ask(document, **options)
    finally:
        client.close()
