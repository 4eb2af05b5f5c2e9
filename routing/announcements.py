"""What a worker tells the process that keeps the prefix index, without waiting for it. Pure.

Datagrams of records: a prompt is on its way to a place (with its blocks), its first token came, it
failed; and what concerns a place as a whole. The heading says in which life the worker is, for
which life of the index's keeper it was written, and its number there: what another one was meant to
read counts for nothing. A datagram that begins `anew` means that nothing said before holds; after
it come the sizes of replicas and all prompts that are still on their way. So whatever was lost,
both agree from then on.
"""

from __future__ import annotations

import enum
import struct
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MOST_BLOCKS = 8_000
"""Of one prompt; what comes after them is not told. They must fit into a datagram."""
_DATAGRAM = 60_000
_MOST_WAITING = 4 * 1024 * 1024
_ANEW = 1 << 63
_HEAD = struct.Struct("<QQQ")
_RECORD = struct.Struct("<BxHIQ")

_NUMBER_BITS = 40

Key = tuple[int, int, int]
"""Prompts on their way: the place, how many blocks, the last one (which stands for all)."""


class Kind(enum.IntEnum):
    """`EXPECT`, `CONFIRM`, `DROP`: as the index's methods. `COLD`: the place holds nothing any
    more. `RESIZE`: it has room for so many blocks. `CORRECTED`: so many were predicted, and so many
    found."""

    EXPECT = 0
    CONFIRM = 1
    DROP = 2
    COLD = 3
    RESIZE = 4
    CORRECTED = 5


class Record(NamedTuple):
    """`number` and `word` mean how many blocks and the last one for the first three kinds, the
    capacity in `word` for RESIZE, predicted and delivered for CORRECTED."""

    kind: int
    place: int
    number: int
    word: int
    blocks: Sequence[int]

    @property
    def key(self) -> Key:
        return self.place, self.number, self.word


class Heading(NamedTuple):
    life: int
    reader: int
    number: int
    anew: bool

    @property
    def mark(self) -> int:
        """Grows with each datagram, and with each life of the reader."""
        return self.reader << _NUMBER_BITS | self.number


class Announcer:
    """One worker's side: what is to be sent, in order, what is on its way, and how large replicas
    have said to be. `life` is the worker's. Bounded: what is too much is forgotten, counted in
    `lost`, and all begins anew."""

    def __init__(self, life: int, reader: int) -> None:
        self._life = life
        self._reader = reader
        self._sizes: dict[int, int] = {}
        self._live: dict[Key, tuple[Sequence[int], int]] = {}
        self._waiting: deque[bytes] = deque()
        self._records: list[bytes] = []
        self._size = 0
        self._most = _MOST_WAITING
        self._waiting_size = 0
        self._number = 0
        self.lost = 0
        self.begin(reader)

    def __repr__(self) -> str:
        return f"<Announcer {len(self._live)} on their way, {self._waiting_size} bytes to send>"

    @property
    def reader(self) -> int:
        """Which life of the index's keeper is spoken to."""
        return self._reader

    @property
    def mark(self) -> int:
        """Of the datagram that holds what is said now; see `Heading.mark`."""
        return self._reader << _NUMBER_BITS | self._number + 1

    def expect(self, place: int, blocks: Sequence[int]) -> None:
        blocks = blocks[:MOST_BLOCKS]
        key = (place, len(blocks), blocks[-1])
        count = self._live.get(key, (blocks, 0))[1]
        self._live[key] = (blocks, count + 1)
        self._expect(key, blocks)

    def confirm(self, place: int, blocks: Sequence[int]) -> None:
        self._over(Kind.CONFIRM, place, blocks)

    def drop(self, place: int, blocks: Sequence[int]) -> None:
        self._over(Kind.DROP, place, blocks)

    def cold(self, place: int) -> None:
        self._say(_RECORD.pack(Kind.COLD, place, 0, 0))

    def resize(self, place: int, capacity: int) -> None:
        self._sizes[place] = capacity
        self._say(_RECORD.pack(Kind.RESIZE, place, 0, capacity))

    def left(self, place: int) -> None:
        """Another replica has it: what was told of its size holds no more."""
        self._sizes.pop(place, None)

    def corrected(self, place: int, predicted: int, delivered: int) -> None:
        self._say(_RECORD.pack(Kind.CORRECTED, place, predicted, delivered))

    def begin(self, reader: int) -> None:
        """Say all anew, to the keeper in its life `reader`."""
        self._reader = reader
        self._waiting.clear()
        self._records.clear()
        self._size = self._waiting_size = 0
        self._most = 1 << 62
        self._number += 1
        self._waiting.append(_HEAD.pack(self._life, reader, _ANEW | self._number))
        for place, capacity in self._sizes.items():
            self._say(_RECORD.pack(Kind.RESIZE, place, 0, capacity))
        for key, (blocks, count) in self._live.items():
            for _ in range(count):
                self._expect(key, blocks)
        self._most = self._waiting_size + _MOST_WAITING

    def next(self) -> bytes | None:
        """The datagram to send next; it stays the next one until it was `sent`."""
        if not self._waiting:
            if not self._records:
                return None
            self._close()
        return self._waiting[0]

    def sent(self) -> None:
        self._waiting_size -= len(self._waiting.popleft())

    def _expect(self, key: Key, blocks: Sequence[int]) -> None:
        place, count, last = key
        record = _RECORD.pack(Kind.EXPECT, place, count, last)
        self._say(record + array("Q", blocks).tobytes())

    def _over(self, kind: Kind, place: int, blocks: Sequence[int]) -> None:
        blocks = blocks[:MOST_BLOCKS]
        key = (place, len(blocks), blocks[-1])
        if key not in self._live:
            return  # it was never told
        held, count = self._live[key]
        if count > 1:
            self._live[key] = (held, count - 1)
        else:
            del self._live[key]
        self._say(_RECORD.pack(kind, *key))

    def _say(self, record: bytes) -> None:
        if self._size + len(record) > _DATAGRAM:
            self._close()
        self._records.append(record)
        self._size += len(record)
        if self._waiting_size + self._size > self._most:
            self.lost += 1
            self.begin(self._reader)

    def _close(self) -> None:
        self._number += 1
        head = _HEAD.pack(self._life, self._reader, self._number)
        datagram = b"".join((head, *self._records))
        self._waiting.append(datagram)
        self._waiting_size += len(datagram)
        self._records.clear()
        self._size = 0


def heading(datagram: bytes) -> Heading:
    """Raises ValueError for what no worker sends."""
    if len(datagram) < _HEAD.size:
        raise ValueError(f"a datagram of {len(datagram)} bytes")
    life, reader, number = _HEAD.unpack_from(datagram)
    return Heading(life, reader, number & ~_ANEW, bool(number & _ANEW))


def records(datagram: bytes) -> Iterator[Record]:
    """Raises ValueError, too."""
    at, end = _HEAD.size, len(datagram)
    while at < end:
        if end - at < _RECORD.size:
            raise ValueError("half a record")
        kind, place, count, word = _RECORD.unpack_from(datagram, at)
        at += _RECORD.size
        blocks: Sequence[int] = ()
        if kind == Kind.EXPECT:
            if end - at < 8 * count:
                raise ValueError("half a prompt")
            blocks = array("Q", datagram[at : at + 8 * count])
            at += 8 * count
        yield Record(kind, place, count, word, blocks)
