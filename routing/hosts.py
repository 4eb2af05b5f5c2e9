"""What gateways on several hosts tell each other of the work that they gave to replicas. Pure.

A message holds rows: what one gateway has given a replica and not got back, as it stands. So a
message that is lost does no lasting harm: the next row of that replica, or the next snapshot (all
rows that are not at nothing), is true by itself. Nobody's clock is in it: who is silent for
`EXPIRE_S` by the hearer's clock counts for nothing.

A replica is named by a hash of its id, which must therefore be the same on all hosts. A gateway is
named by a random number; `life` and `number` grow, and what is not newer than the last is ignored.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import xxhash

SNAPSHOT_S = 1.0
EXPIRE_S = 3.0
MOST_ROWS = 4096
MOST_HOSTS = 256
_MAGIC = b"HRHL"
_VERSION = 1
_HEAD = struct.Struct("<4sHHQQQ")
_ROW = struct.Struct("<QQQQ")
MOST_BYTES = _HEAD.size + MOST_ROWS * _ROW.size
_MOST_TOKENS = 1 << 40
_MOST_REQUESTS = 1 << 24

Row = tuple[int, int, int]
"""Pending prompt tokens, requests in flight, live KV tokens; see `ledger.Account`."""
NOTHING: Row = (0, 0, 0)


class Kind(enum.IntEnum):
    """`CHANGES`: these rows are so now. `SNAPSHOT`: and all others at nothing. `LEAVING`: all are
    at nothing, and no more will come."""

    CHANGES = 0
    SNAPSHOT = 1
    LEAVING = 2


class Message(NamedTuple):
    kind: Kind
    host: int
    life: int
    number: int
    rows: Sequence[tuple[int, Row]]


def replica_key(replica_id: str) -> int:
    """Its name in messages."""
    return xxhash.xxh3_64_intdigest(replica_id.encode())


def encode(message: Message) -> bytes:
    kind, host, life, number, rows = message
    head = _HEAD.pack(_MAGIC, _VERSION, kind, host, life, number)
    return head + b"".join([_ROW.pack(key, *row) for key, row in rows[:MOST_ROWS]])


def decode(data: bytes) -> Message:
    """Raises ValueError for what no gateway of this version sends."""
    size = len(data) - _HEAD.size
    if size < 0 or len(data) > MOST_BYTES or size % _ROW.size:
        raise ValueError(f"{len(data)} bytes")
    magic, version, kind, host, life, number = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise ValueError(f"version {version} of {magic!r}")
    rows = []
    for key, pending, in_flight, live in _ROW.iter_unpack(memoryview(data)[_HEAD.size :]):
        if pending > _MOST_TOKENS or live > _MOST_TOKENS or in_flight > _MOST_REQUESTS:
            raise ValueError("a row beyond all bounds")
        rows.append((key, (pending, in_flight, live)))
    return Message(Kind(kind), host, life, number, rows)


class Teller:
    """What this gateway says, `host` in its `life`."""

    def __init__(self, host: int, life: int) -> None:
        self._host = host
        self._life = life
        self._number = 0
        self._told: dict[int, Row] = {}
        self._snapshot_at = float("-inf")

    def __repr__(self) -> str:
        return f"<Teller {self._host:016x} life={self._life} number={self._number}>"

    def next(self, rows: Mapping[int, Row], now: float) -> bytes | None:
        """What is to be said while the accounts stand at `rows`, if anything."""
        if now >= self._snapshot_at:
            self._snapshot_at = now + SNAPSHOT_S
            self._told = dict(rows)
            busy = [(key, row) for key, row in rows.items() if row != NOTHING]
            return self._say(Kind.SNAPSHOT, busy)
        told = self._told
        changed = [(key, row) for key, row in rows.items() if told.get(key, NOTHING) != row]
        if not changed:
            return None
        told.update(changed)
        return self._say(Kind.CHANGES, changed)

    def failed(self) -> None:
        """What was said last may not have been heard."""
        self._snapshot_at = float("-inf")

    def farewell(self) -> bytes:
        return self._say(Kind.LEAVING, ())

    def _say(self, kind: Kind, rows: Sequence[tuple[int, Row]]) -> bytes:
        self._number += 1
        return encode(Message(kind, self._host, self._life, self._number, rows))


class _Other:
    """One other gateway."""

    __slots__ = ("heard_at", "last", "rows")

    def __init__(self) -> None:
        self.last = (-1, -1)
        self.heard_at = 0.0
        self.rows: dict[int, Row] = {}


class Listener:
    """What the other gateways have given the replicas, together. `own` is the number of this one,
    whose messages come back."""

    def __init__(self, own: int) -> None:
        self._own = own
        self._known: Collection[int] = ()
        self._others: dict[int, _Other] = {}
        self._sums: dict[int, Row] = {}
        self._changed: set[int] = set()

    def __repr__(self) -> str:
        return f"<Listener to {len(self._others)} gateways>"

    def __len__(self) -> int:
        return len(self._others)

    def use(self, known: Collection[int]) -> None:
        """These are our replicas; of others nothing is remembered."""
        self._known = frozenset(known)
        for other in self._others.values():
            for key in [key for key in other.rows if key not in self._known]:
                self._put(other, key, NOTHING)

    def hear(self, data: bytes, now: float) -> bool:
        """Whether it told anything new of another gateway. Raises ValueError for garbage."""
        kind, host, life, number, rows = decode(data)
        if host == self._own:
            return False
        other = self._others.get(host)
        if other is None:
            if kind is Kind.LEAVING:
                return False
            if len(self._others) >= MOST_HOSTS:
                raise ValueError(f"more than {MOST_HOSTS} gateways")
            other = self._others[host] = _Other()
        elif (life, number) <= other.last:
            return False
        if life != other.last[0] or kind is not Kind.CHANGES:
            self._forget_rows(other)
        if kind is Kind.LEAVING:
            del self._others[host]
            return True
        other.last = (life, number)
        other.heard_at = now
        for key, row in rows:
            if key in self._known:
                self._put(other, key, row)
        return True

    def expire(self, now: float) -> None:
        """To be called several times a second."""
        for host, other in list(self._others.items()):
            if now - other.heard_at > EXPIRE_S:
                self._forget_rows(other)
                del self._others[host]

    def total(self, key: int) -> Row:
        return self._sums.get(key, NOTHING)

    def take_changed(self) -> set[int]:
        """Replicas whose `total` may be another one than at the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def _forget_rows(self, other: _Other) -> None:
        for key in list(other.rows):
            self._put(other, key, NOTHING)

    def _put(self, other: _Other, key: int, row: Row) -> None:
        before = other.rows.get(key, NOTHING)
        if row == before:
            return
        if row == NOTHING:
            del other.rows[key]
        else:
            other.rows[key] = row
        pending, in_flight, live = self._sums.get(key, NOTHING)
        total = (pending + row[0] - before[0], in_flight + row[1] - before[1])
        self._sums[key] = (*total, live + row[2] - before[2])
        if self._sums[key] == NOTHING:
            del self._sums[key]
        self._changed.add(key)
