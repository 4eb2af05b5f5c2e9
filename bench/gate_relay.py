"""`python -m bench.gate_relay PORT TO HOW`: a relay that does what `bench.gate_bar` must find.

`plain` passes each read on; `buffer` holds an answer until its last byte has come, as a proxy that
buffers; `delay` sends each read a millisecond later.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

import uvloop

LAST = b"0\r\n\r\n"
DELAY_S = 0.001


async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, how: str) -> None:
    held = b""
    while data := await reader.read(65536):
        if how == "buffer":
            held += data
            if not held.endswith(LAST):
                continue
            data, held = held, b""
        elif how == "delay":
            await asyncio.sleep(DELAY_S)
        writer.write(data)
    writer.close()


async def requests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


async def serve(port: int, to: int, how: str) -> None:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            back, forth = await asyncio.open_connection("127.0.0.1", to)
            await asyncio.gather(requests(reader, forth), answers(back, writer, how))

    server = await asyncio.start_server(relay, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
