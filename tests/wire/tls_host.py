"""One host with several workers, for the tests of session tickets: run as a process of its own.

Usage: tls_host.py WORKERS CERTIFICATE KEY SECRET AHEAD [CA]. Each worker serves a port of its own
and answers a line with its pid. SECRET is a file; AHEAD is one with the seconds by which the
host's wall clock is ahead, read at every look at the clock. The workers end with their parent.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from pathlib import Path

import uvloop

from core.section import FilePath, Secret
from proxy.tls.config import ClientCertificateConfig, TicketConfig, TlsConfig
from proxy.tls.server import ServerTls

workers, certificate, key, secret, ahead, *ca = sys.argv[1:]
tls = ServerTls(
    TlsConfig(
        certificate=FilePath(certificate),
        key=FilePath(key),
        tickets=TicketConfig(secret=Secret(f"file:{secret}")),
        client_certificates=ClientCertificateConfig(ca=FilePath(ca[0])) if ca else None,
    ),
    lambda: time.time() + float(Path(ahead).read_text()),
)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(f"{os.getpid()}\n".encode())
    await writer.drain()
    writer.close()


async def serve(sock: socket.socket) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(life, over.set)
    server = await asyncio.start_server(answer, sock=sock, ssl=tls.context)
    await over.wait()
    server.close()


sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(workers))]
life, alive = os.pipe()
children = []
for sock in sockets:
    pid = os.fork()
    if pid == 0:
        os.close(alive)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(sock))
        os._exit(0)
    children.append(pid)
ports = " ".join(f":{sock.getsockname()[1]}" for sock in sockets)
sys.stderr.write(f"listening on {ports}\n")
for pid in children:
    os.waitpid(pid, 0)
