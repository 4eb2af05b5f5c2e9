"""What the supervisor, its workers and the visitors of its control socket say to each other.

A frame is the length of what follows (4 bytes, big-endian) and a JSON object whose `type` names
the message. Unknown fields are ignored, so that a newer gateway can take over from an older one.
"""

from __future__ import annotations

import struct
from typing import Literal, dataclass_transform

import msgspec

LONGEST_FRAME = 16 * 1024 * 1024
"""Bytes; a configuration file must fit."""

_LENGTH = struct.Struct(">I")


# Type checkers do not see that subclasses inherit `frozen`; this tells them.
@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Message(msgspec.Struct, frozen=True, tag=True):
    """The base of all messages."""


# --- from the supervisor to a worker


class Stage(Message):
    """Build `text`, as it was read from `path`, and use it for nothing yet. `attempt` is never
    used twice, so that a late answer is not taken for one to the next question."""

    attempt: int
    text: bytes
    path: str


class Commit(Message):
    """Use what was staged in `attempt`."""

    attempt: int


class Drop(Message):
    """Forget what was staged in `attempt`."""

    attempt: int


class Drain(Message):
    """End when the exchanges are over. `delay`: go on for a while, so that the news can spread.
    `handed_over`: another gateway has the sockets now, so accept nothing more. `at_once`: do not
    wait for the exchanges, nor go on waiting for them."""

    delay: bool = False
    handed_over: bool = False
    at_once: bool = False


class Outcome(Message):
    """How the last reload went. `generation` counts the configurations in force, from 1. `at` is
    in Unix seconds. `reason`: why it was refused, a line for each fault. `changed`: what differs
    now, paths of settings and of files. `troubles`: what hinders the finding of replicas now."""

    generation: int = 1
    result: Literal["started", "applied", "refused"] = "started"
    at: float = 0.0
    reason: str = ""
    changed: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()


# --- from a worker to the supervisor


class Ready(Message):
    """The worker accepts connections."""


class Staged(Message):
    attempt: int


class Refused(Message):
    """The worker cannot build what it was told to stage."""

    attempt: int
    reason: str


class Committed(Message):
    attempt: int


class Found(Message):
    """What DNS says now of the replicas that are looked for: hosts by query, as far as anything is
    known, and what is wrong, in words."""

    hosts: dict[str, tuple[str, ...]] = {}
    troubles: tuple[str, ...] = ()


# --- on the control socket


class Reload(Message):
    """Read the configuration anew; the answer is an `Outcome` or a `Rejected`. `path` is the file
    that the visitor means (absolute)."""

    path: str


class DrainReplica(Message):
    """Send nothing new to the replica (`drain` False: send to it again); the answer is as for
    `Reload`."""

    path: str
    replica: str
    drain: bool = True


class Rejected(Message):
    """What was asked for is not done."""

    reason: str


class TakeOver(Message):
    """Hand out all listening sockets: a `Listening` for each, then a `HandedOver`."""


class Listening(Message):
    """One listening socket; its descriptor travels with this frame. `file`: inode and
    modification time of a Unix socket's file."""

    address: str
    file: tuple[int, int] = (0, 0)


class HandedOver(Message):
    """The end of the sockets. `secret` is what both generations derive their common secrets
    from, `found` what DNS said of the replicas (see `Found`)."""

    secret: bytes
    found: dict[str, tuple[str, ...]] = {}


class Yield(Message):
    """The visitor serves the addresses `kept` from now on: end. There is no answer."""

    kept: tuple[str, ...]


_ANY = (
    Stage | Commit | Drop | Drain | Outcome | Ready | Staged | Refused | Committed | Found | Reload
    | DrainReplica | Rejected | TakeOver | Listening | HandedOver | Yield
)  # fmt: skip
_decoder = msgspec.json.Decoder(_ANY)
_encoder = msgspec.json.Encoder()


def encode(message: Message) -> bytes:
    """One frame."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts what arrives into messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def __repr__(self) -> str:
        return f"<Frames {len(self._rest)} bytes wait>"

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete. Raises ValueError when the other side makes no sense."""
        self._rest += data
        found: list[Message] = []
        while len(self._rest) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest)
            if length > LONGEST_FRAME:
                raise ValueError(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self._rest) < end:
                break
            found.append(_decoder.decode(self._rest[_LENGTH.size : end]))
            del self._rest[:end]
        return found
