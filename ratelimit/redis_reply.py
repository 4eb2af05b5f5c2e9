"""Redis errors as words, and commands as bytes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

KINDS = {
    "NOSCRIPT": "noscript",
    "LOADING": "loading",
    "READONLY": "readonly",
    "MASTERDOWN": "readonly",
    "NOREPLICAS": "readonly",
    "OOM": "oom",
    "MISCONF": "misconf",
    "WRONGTYPE": "wrong_type",
    "BUSY": "busy",
    "MOVED": "moved",
    "ASK": "moved",
    "CLUSTERDOWN": "moved",
    "CROSSSLOT": "moved",
    "NOAUTH": "auth",
    "WRONGPASS": "auth",
    "NOPERM": "auth",
}


def kind_of(error: str) -> str:
    """The bounded word for an error reply. Errors inside scripts name their cause later on."""
    first = error.partition(" ")[0]
    if first in KINDS:
        return KINDS[first]
    if "max number of clients" in error:
        return "max_clients"
    if "invalid password" in error or "AUTH" in error:
        return "auth"
    return next((kind for word, kind in KINDS.items() if word in error), "other")


def command(*parts: bytes) -> bytes:
    """One command in the Redis protocol."""
    return b"*%d\r\n%b" % (len(parts), join(parts))


def join(parts: Sequence[bytes]) -> bytes:
    """The bulk strings of a command."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])
