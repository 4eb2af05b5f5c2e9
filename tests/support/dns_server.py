"""A small DNS server on 127.0.0.1, over UDP and TCP (RFC 1035), which says what a test wants."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
from types import TracebackType
from typing import cast

TYPES = {1: "A", 28: "AAAA", 33: "SRV"}
NOERROR, SERVFAIL, NXDOMAIN = 0, 2, 3
_SOA = 6


class DnsServer:
    """`records` by query ("A vllm.test"): addresses, or `priority weight port target`. Names that
    have no record at all do not exist. `async with DnsServer() as server`.

    `ttl_s`: of all records. `rcode`: in place of an answer. `silent`: says nothing. `zone`: whether
    what does not exist is said with the zone's authority. `fits`: bytes of the longest answer over
    UDP. `nonsense`: sent as it is.
    """

    def __init__(self) -> None:
        self.records: dict[str, list[str]] = {}
        self.ttl_s = 1
        self.rcode = NOERROR
        self.silent = False
        self.zone = True
        self.fits = 1232
        self.nonsense = b""
        self.asked: list[str] = []
        self.over_tcp: list[str] = []
        self.port = 0
        self._udp: asyncio.DatagramTransport | None = None
        self._tcp: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<DnsServer on {self.port}, {len(self.asked)} queries>"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> DnsServer:
        loop = asyncio.get_running_loop()
        while self._tcp is None:
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
            try:
                self._tcp = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            except OSError:  # the port is somebody's, over TCP
                sock.close()
        transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self), sock=sock)
        self._udp = cast(asyncio.DatagramTransport, transport)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._udp is not None
        assert self._tcp is not None
        self._udp.close()
        self._tcp.close()
        await self._tcp.wait_closed()

    def answer(self, query: bytes, most: int) -> bytes | None:
        name, end = _name_at(query, 12)
        kind = TYPES.get(struct.unpack_from(">H", query, end)[0], "?")
        question = query[12 : end + 4]
        self.asked.append(f"{kind} {name}")
        if self.silent:
            return None
        if self.nonsense:
            return query[:2] + self.nonsense
        found = self.records.get(f"{kind} {name}", [])
        known = any(key.partition(" ")[2] == name for key in self.records)
        rcode = self.rcode or (NOERROR if known else NXDOMAIN)
        if rcode == SERVFAIL:
            found = []
        records = b"".join(self._record(kind, text) for text in found)
        authority = b""
        if not found and self.zone and rcode != SERVFAIL:
            soa = b"\0\0" + struct.pack(">5I", 1, 2, 3, 4, self.ttl_s)
            authority = b"\0" + struct.pack(">HHIH", _SOA, 1, self.ttl_s, len(soa)) + soa
        flags = 0x8180 | rcode
        counts = (1, len(found), len(authority) > 0, 0)
        whole = query[:2] + struct.pack(">5H", flags, *counts) + question + records + authority
        if len(whole) > most:
            return query[:2] + struct.pack(">5H", flags | 0x0200, 1, 0, 0, 0) + question
        return whole

    def _record(self, kind: str, text: str) -> bytes:
        if kind == "SRV":
            priority, weight, port, target = text.split()
            data = struct.pack(">3H", int(priority), int(weight), int(port)) + _encoded(target)
        else:
            data = ipaddress.ip_address(text).packed
        number = next(number for number, name in TYPES.items() if name == kind)
        return b"\xc0\x0c" + struct.pack(">HHIH", number, 1, self.ttl_s, len(data)) + data

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.read(2):
                query = await reader.readexactly(int.from_bytes(head, "big"))
                if (answer := self.answer(query, 65_535)) is not None:
                    self.over_tcp.append(self.asked[-1])
                    writer.write(len(answer).to_bytes(2, "big") + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        answer = self._server.answer(data, self._server.fits)
        if answer is not None and self._transport is not None:
            self._transport.sendto(answer, addr)


def _name_at(message: bytes, at: int) -> tuple[str, int]:
    """A name that is not compressed, and where it ends."""
    labels = []
    while length := message[at]:
        labels.append(message[at + 1 : at + 1 + length].decode())
        at += 1 + length
    return ".".join(labels), at + 1


def _encoded(name: str) -> bytes:
    labels = [label.encode() for label in name.strip(".").split(".") if label]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
