"""Clients that are gone without a word: neither FIN nor RST, nor an acknowledgement."""

from __future__ import annotations

import ctypes
import socket
import struct
from pathlib import Path

from client import Client, chat
from running import InProcess, base_config, eventually

from loadtest.replica import FakeReplica

_SO_ATTACH_FILTER = 26
_RETURN_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A program of the classic packet filter: `ret #0`."""


def vanish(client: Client) -> None:
    """The kernel drops whatever arrives for this socket, before it acknowledges anything."""
    program = ctypes.create_string_buffer(_RETURN_NOTHING)
    header = struct.pack("HP", 1, ctypes.addressof(program))
    sock: socket.socket = client.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, header)


async def test_its_work_upstream_ends(tmp_path: Path) -> None:
    """Also where a stream fits into the send buffer, and where nothing is sent yet."""
    async with FakeReplica() as flowing, FakeReplica() as silent:
        flowing.behaviour, silent.behaviour = "tokens=100000,token_ms=30", "stall_first"
        for replica in (flowing, silent):
            document = base_config([replica.url])
            document["listen"]["timeouts"] = {"write_idle_s": 1}
            async with InProcess(document, tmp_path) as gateway:
                client = await Client.open(gateway.port)
                client.send(chat())
                if replica is flowing:
                    await client.head()

                async def arrived(replica: FakeReplica = replica) -> bool:
                    return bool(replica.requests)

                await eventually(arrived)
                vanish(client)

                async def ended(replica: FakeReplica = replica) -> bool:
                    return replica.requests[0].aborted_at is not None

                await eventually(ended)
                client.close()
