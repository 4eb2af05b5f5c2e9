"""The last good key set of an issuer on disk, so that a restart while the issuer is down serves.

What is in the file decides who is believed, so it counts only if nobody else could have written it,
and then is parsed as strictly as what is fetched. Nothing in it is secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from typing import NamedTuple

import msgspec

from auth.keyset import MAX_DOCUMENT_BYTES

MAX_FUTURE_S = 300.0
"""A copy from further in the future than that was dated by a wrong clock: its age is unknown."""
_MAX_FILE_BYTES = 2 * MAX_DOCUMENT_BYTES + 1024


class _File(msgspec.Struct):
    fetched_at: float
    document: str


class Copy(NamedTuple):
    """A document, and how many seconds ago the issuer showed it."""

    document: bytes
    age_s: float


class KeyCopy:
    """The file of one key set in `folder`; `name` tells where the set comes from."""

    def __init__(self, folder: str, name: str) -> None:
        digest = hashlib.sha256(name.encode()).hexdigest()[:32]
        self._folder = folder
        self._path = os.path.join(folder, f"key-set-{digest}.json")

    def __repr__(self) -> str:
        return f"KeyCopy({self._path!r})"

    def write(self, document: bytes, now: float) -> None:
        """Replace the file whole. `now`: Unix seconds. Raises OSError; ValueError for what is no
        text."""
        content = msgspec.json.encode(_File(now, document.decode("utf-8")))
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        new = f"{self._path}.{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(new, flags, 0o600), "wb") as file:
                file.write(content)
            os.rename(new, self._path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise

    def read(self, now: float) -> Copy | None:
        """What `write` kept; None when there is nothing that can be trusted. `now`: Unix seconds.
        Raises OSError."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            file = open(os.open(self._path, flags), "rb")  # noqa: SIM115 - closed below
        except FileNotFoundError:
            return None
        with file:
            status = os.fstat(file.fileno())
            ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            if not ours or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise PermissionError(f"{self._path} may be written by others")
            content = file.read(_MAX_FILE_BYTES)
        try:
            kept = msgspec.json.decode(content, type=_File)
        except msgspec.DecodeError:
            return None
        age_s = now - kept.fetched_at
        if not age_s >= -MAX_FUTURE_S:
            return None
        return Copy(kept.document.encode("utf-8", "replace"), max(0.0, age_s))
