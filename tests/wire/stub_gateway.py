"""A supervisor whose workers are stubs: run by the tests as a process of its own.

Usage: stub_gateway.py MODE WORKERS DRAIN_S [CERTIFICATE KEY]. Each worker serves only the
listening socket of its own index, and answers a line with `index pid`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable

from core.errors import ConfigError
from proxy.address import parse_address
from proxy.config import TlsConfig
from proxy.serve.supervisor import Supervisor, say
from proxy.sockets import bind_all
from proxy.tls import ServerTls

mode, workers, drain_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
context = None
if len(sys.argv) > 4:
    settings = TlsConfig(certificate=sys.argv[4], key=sys.argv[5])  # type: ignore[arg-type]
    context = ServerTls(settings, time.time).context
sockets = bind_all([parse_address("127.0.0.1:0")] * workers, None)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, index: int) -> None:
    while await reader.readline():
        writer.write(f"{index} {os.getpid()}\n".encode())
        await writer.drain()
    writer.close()


async def work(index: int, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    if mode == "bad-config":
        raise ConfigError("$.models: cannot be used\n$.replicas: neither")
    if mode == "crash-loop" and index == 0:
        raise RuntimeError("broken on purpose")
    server = await asyncio.start_server(
        lambda reader, writer: answer(reader, writer, index),
        sock=sockets.listen[index].socket,
        ssl=context,
    )
    ready()
    await stop.wait()
    server.close()
    if mode == "stubborn":
        await asyncio.sleep(3600)
    say(f"worker {index} drained")


sys.exit(
    Supervisor(
        work,
        workers=workers,
        sockets=sockets,
        drain_s=drain_s,
        on_death=lambda index: say(f"folded {index}"),
        scheme="http" if context is None else "https",
    ).run()
)
