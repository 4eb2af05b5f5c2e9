"""Which process holds an address, as far as /proc lets us see it. For error messages only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from proxy.listen.address import Address

_LISTEN = "0A"  # st of /proc/net/tcp, see include/net/tcp_states.h of Linux


def holder_of(address: Address) -> str | None:
    """`name (pid 123)` of a process that listens there, or None."""
    inodes = set(_unix_inodes(address.path) if address.is_unix else _tcp_inodes(address.port))
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and _holds(entry, wanted):
            return f"{_name(entry)} (pid {entry})"
    return None


def _tcp_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _lines(table):
            fields = line.split()
            local, state, inode = fields[1], fields[3], fields[9]
            if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                yield inode


def _unix_inodes(path: str) -> Iterator[str]:
    for line in _lines("/proc/net/unix"):
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[7].rstrip("\n") == path:
            yield fields[6]


def _lines(table: str) -> list[str]:
    try:
        with open(table, encoding="utf-8", errors="replace") as file:
            return file.readlines()[1:]
    except OSError:
        return []


def _holds(pid: str, wanted: set[str]) -> bool:
    # Processes of other users, and those that end meanwhile, cannot be looked at.
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{descriptor}") in wanted:
                    return True
    return False


def _name(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "a process"
