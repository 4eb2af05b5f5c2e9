"""Redis errors as words, and commands as bytes. Pure."""

from __future__ import annotations

import re
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
    "ASK": "ask",
    "TRYAGAIN": "ask",
    "CLUSTERDOWN": "cluster_down",
    "CROSSSLOT": "cross_slot",
    "NOAUTH": "auth",
    "WRONGPASS": "auth",
    "NOPERM": "auth",
}


_PLACE = re.compile(r"(?:MOVED|ASK) (\d{1,5}) (.*):(\d{1,5})")


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


def place_in(error: str) -> tuple[int, str, int] | None:
    """Slot, host and port of `MOVED 3999 127.0.0.1:6381` or `ASK ...`; the host is empty when it is
    that of the server that says so."""
    match = _PLACE.fullmatch(error)
    return (int(match[1]), match[2], int(match[3])) if match else None


def command(*parts: bytes) -> bytes:
    """One command in the Redis protocol."""
    return b"*%d\r\n%b" % (len(parts), join(parts))


def join(parts: Sequence[bytes]) -> bytes:
    """The bulk strings of a command."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])
