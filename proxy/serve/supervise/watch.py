"""Which files have changed: told by what they are, not by what they hold.

A path is resolved first, since Kubernetes changes mounted ConfigMaps and Secrets by turning a
symbolic link above the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

INTERVAL_S = 2.0
"""Between two looks."""

Identity = tuple[str, int, int, int, int] | None
"""Resolved path, device, inode, modification time in nanoseconds and size; None: no such file."""

Look = Callable[[Iterable[str]], dict[str, Identity]]


def identity(path: str) -> Identity:
    try:
        resolved = os.path.realpath(path)
        status = os.stat(resolved)
    except OSError:
        return None
    return resolved, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def look_at(paths: Iterable[str]) -> dict[str, Identity]:
    return {path: identity(path) for path in paths}


class Watch:
    """Compares the files with how they were when they were last read."""

    def __init__(self, look: Look = look_at) -> None:
        self._look = look
        self._known: dict[str, Identity] = {}
        self._last: dict[str, Identity] = {}

    def __repr__(self) -> str:
        return f"<Watch {len(self._known)} files>"

    def expect(self, seen: dict[str, Identity]) -> None:
        """Take `seen`, looked at before the files were read, for what is in force."""
        self._known = dict(seen)
        self._last = self._known

    def changed(self) -> list[str]:
        """The paths that changed and then stayed so for two looks in a row; asked every
        INTERVAL_S. A file that is still being written is different at each look."""
        last, self._last = self._last, self._look(self._known)
        if self._last == self._known or self._last != last:
            return []
        return [path for path, seen in self._last.items() if seen != self._known[path]]
