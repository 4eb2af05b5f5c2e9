"""What this process uses of what it may use: file descriptors and memory, read from the kernel.

Memory is that of the control group, if it has a limit (a container's, a service's): what counts is
when the kernel would kill. Without one it is the workers' own memory as a part of the host's, since
others on the host are not ours to shed for.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_UNLIMITED_BYTES = 1 << 60  # version 1 says "no limit" with a number close to 2**63
_GROUP = Path("/sys/fs/cgroup")
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


class MemoryGroup:
    """The memory control group of this process: files of version 2 or 1 below `root`."""

    def __init__(self, folder: Path, limit: str, usage: str, cache: str) -> None:
        self._limit = folder / limit
        self._usage = folder / usage
        self._statistics = folder / "memory.stat"
        self._cache = cache.encode()

    def __repr__(self) -> str:
        return f"<MemoryGroup {self._limit.parent}>"

    def limit_bytes(self) -> int | None:
        """None: no limit, or none that can be read."""
        try:
            limit = int(self._limit.read_bytes())
        except (OSError, ValueError):  # the word `max` among others
            return None
        return limit if 0 < limit < _UNLIMITED_BYTES else None

    def used_bytes(self) -> int:
        """Without what the kernel drops when it needs room (cached files not used of late)."""
        used = int(self._usage.read_bytes())
        for line in self._statistics.read_bytes().splitlines():
            name, _, value = line.partition(b" ")
            if name == self._cache:
                used -= int(value)
        return max(0, used)


def find_memory_group(root: Path = _GROUP, membership: str | None = None) -> MemoryGroup | None:
    """The nearest group above this process that has a limit. `membership` is the text of
    /proc/self/cgroup."""
    if membership is None:
        try:
            membership = Path("/proc/self/cgroup").read_text()
        except OSError:
            return None
    for line in membership.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            names = ("memory.max", "memory.current", "inactive_file")
            top = root
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            top = root / "memory"
        else:
            continue
        folder = top / path.strip("/")
        for place in (folder, *folder.parents):
            group = MemoryGroup(place, *names)
            if group.limit_bytes() is not None:
                return group
            if place == top:
                break
    return None


class Resources:
    """Parts of what there is, between 0 and 1. `resident_bytes()` is the memory of all workers;
    `in_use()` counts descriptors where the kernel does not (before Linux 6.2)."""

    def __init__(self, resident_bytes: Callable[[], int], in_use: Callable[[], int]) -> None:
        self._resident_bytes = resident_bytes
        self._in_use = in_use
        self._group = find_memory_group()
        self._host_bytes = os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES
        self._base = len(os.listdir("/proc/self/fd"))

    def __repr__(self) -> str:
        return f"<Resources {self._group!r}>"

    def descriptors(self) -> float:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return 0.0
        used = os.stat("/proc/self/fd").st_size or self._base + self._in_use()
        return used / soft

    def memory(self) -> float:
        group = self._group
        limit = group.limit_bytes() if group is not None else None
        if group is None or limit is None:
            return self._resident_bytes() / self._host_bytes
        try:
            return group.used_bytes() / limit
        except (OSError, ValueError):
            return 0.0


def give_back_memory() -> None:
    """Return what is free inside the heap to the system (glibc alone can do that).

    The event loop gives each TLS connection a read buffer of 256 KiB, of which it touches a few
    pages. Where others have been before, all pages of it are there: without this call 10,000 idle
    streams took 48 KiB each at first, and 80 when they had been closed and opened twice. To keep
    such buffers out of the heap (M_MMAP_THRESHOLD) would cost large requests half of their speed.
    """
    if _trim is not None:
        _trim(0)


def own_resident_bytes() -> int:
    """The memory of this process that is not in files (proc(5), statm)."""
    with open("/proc/self/statm", "rb") as file:
        _, resident, shared, *_ = file.read().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES
