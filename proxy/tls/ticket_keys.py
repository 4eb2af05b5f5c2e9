"""Which keys encrypt and open TLS session tickets (RFC 5077 section 4): arithmetic and derivation.

A ring is one key that encrypts and at least two more that open: the previous one, whose tickets
are still out, and the next one, so that a host whose clock is ahead already uses what all others
accept. Either the operator gives the keys as files, or each is derived from one secret and the
number of the rotation period since 1970. Then any number of workers and hosts agree without a
word, as long as their clocks differ by less than one period.

A policy is what a client must have proved before it got its ticket: nothing, or a certificate of
certain authorities. Each has keys of its own, so that a ticket got under one never resumes under
another (CVE-2025-23419).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 80
ROTATION_S = 43_200.0
OPEN = b""
"""The policy of a listener that asks for no client certificate."""


class TicketKey(NamedTuple):
    """One key: its name as it stands in front of tickets, its HMAC-SHA256 and AES-256 parts."""

    name: bytes
    mac: bytes
    aes: bytes

    @classmethod
    def from_bytes(cls, data: bytes) -> TicketKey:
        """The 80 bytes that nginx and HAProxy use: name 16, HMAC 32, AES 32.

        Raises ValueError when there are more or fewer.
        """
        if len(data) != KEY_BYTES:
            raise ValueError(f"has {len(data)} bytes; a ticket key has {KEY_BYTES}")
        return cls(data[:16], data[16:48], data[48:])

    def __repr__(self) -> str:
        return f"<TicketKey {self.name.hex()}>"


class TicketKeys(Protocol):
    """Where a ring comes from. Instants are Unix seconds."""

    def period_at(self, now: float) -> int:
        """The ring stays the same for as long as this number does."""

    def ring(self, period: int, policy: bytes) -> tuple[TicketKey, ...]:
        """The key that encrypts, then those that only open."""


class FileKeys:
    """The operator's keys: the first one encrypts. Rotated by changing the files."""

    def __init__(self, keys: Sequence[TicketKey]) -> None:
        self._keys = tuple(keys)

    def __repr__(self) -> str:
        return f"<FileKeys {len(self._keys)}>"

    def period_at(self, now: float) -> int:
        return 0

    def ring(self, period: int, policy: bytes) -> tuple[TicketKey, ...]:
        if policy == OPEN:
            return self._keys
        return tuple(_derive(b"".join(key), b"file", policy) for key in self._keys)


class DerivedKeys:
    """Keys derived from `secret`, a new one every `rotation_s`."""

    def __init__(self, secret: bytes, rotation_s: float = ROTATION_S) -> None:
        self._secret = secret
        self._rotation_s = rotation_s

    def __repr__(self) -> str:
        return f"<DerivedKeys rotation_s={self._rotation_s:g}>"

    def period_at(self, now: float) -> int:
        return int(now // self._rotation_s)

    def ring(self, period: int, policy: bytes) -> tuple[TicketKey, ...]:
        # The length of a period is part of the key, so that a changed one starts afresh.
        return tuple(
            _derive(self._secret, b"%r:%d" % (self._rotation_s, number), policy)
            for number in (period, period - 1, period + 1)
        )


def _derive(secret: bytes, which: bytes, policy: bytes) -> TicketKey:
    """HKDF-SHA256 (RFC 5869)."""
    info = b"headrace ticket key 1\0%b\0%b" % (which, policy)
    return TicketKey.from_bytes(HKDF(hashes.SHA256(), KEY_BYTES, None, info).derive(secret))
