"""Key sets shared by the workers of one host, so that fetches count per host. Performs.

A board is made before the fork. Each issuer's documents have a slot: a header, the bytes last
fetched, and a claim that one process at a time holds while it fetches. The claim is a record
lock (POSIX, `fcntl.lockf`) on an anonymous file: the kernel gives it up for a process that dies.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import tempfile
import zlib
from collections.abc import Callable
from functools import partial

from auth.keyset import MAX_DOCUMENT_BYTES
from auth.refresh import History
from core.shared_memory import SharedRows

SLOTS = 32
_HEADER_BYTES = 128
_NAME_BYTES = 16

# Words of the header; the first two hold the slot's name.
_GENERATION, _LENGTH, _CHECKSUM, _ATTEMPT_AT, _SUCCESS_AT, _FAILURES, _OWED_UNTIL = range(2, 9)

_log = logging.getLogger("headrace.auth")


class Board:
    """`slots` slots of shared memory, given out by name. Memory is used only where written."""

    def __init__(self, slots: int = SLOTS) -> None:
        self.slots = slots
        self._rows = SharedRows(slots, _HEADER_BYTES + MAX_DOCUMENT_BYTES)
        self._file = _anonymous_file()
        self._claimed: set[int] = set()

    def __repr__(self) -> str:
        return f"<Board {self.slots} slots, claimed here: {sorted(self._claimed)}>"

    def slot(self, name: str) -> Slot:
        """The slot of this name, the same in every process. When none is free (each change of a
        key set's URL by a reload uses one up) it is one that this process shares with nobody."""
        wanted = hashlib.sha256(name.encode()).digest()[:_NAME_BYTES]
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, self.slots)
        try:
            for index in range(self.slots):
                row = self._rows.row(index)
                found = bytes(row[:_NAME_BYTES])
                if found == bytes(_NAME_BYTES):
                    row[:_NAME_BYTES] = found = wanted
                if found == wanted:
                    return Slot(self, index, row)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self.slots)
        _log.warning("no slot is free for another key set: this worker fetches it for itself")
        return Board(1).slot(name)

    def claim(self, index: int) -> bool:
        """Record locks do not exclude their own process, hence the set beside them."""
        if index in self._claimed:
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, index)
        except OSError:
            return False
        self._claimed.add(index)
        return True

    def release(self, index: int) -> None:
        self._claimed.discard(index)
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, index)


class Slot:
    """One issuer's document and the history of its fetches. Only the claim's holder writes.

    `read_generation` is `generation` as a function of C, for who asks on each request.
    """

    __slots__ = ("_board", "_body", "_floats", "_index", "_words", "read_generation")

    def __init__(self, board: Board, index: int, row: memoryview) -> None:
        self._board = board
        self._index = index
        self._words = row[:_HEADER_BYTES].cast("Q")
        self._floats = row[:_HEADER_BYTES].cast("d")
        self.read_generation: Callable[[], int] = partial(self._words.__getitem__, _GENERATION)
        self._body = row[_HEADER_BYTES : _HEADER_BYTES + MAX_DOCUMENT_BYTES]

    def __repr__(self) -> str:
        return f"<Slot {self._index} generation {self.generation} {self.history}>"

    @property
    def generation(self) -> int:
        """Rises whenever the document changes; 0 before the first."""
        return self._words[_GENERATION]

    @property
    def history(self) -> History:
        floats = self._floats
        return History(
            attempt_at=floats[_ATTEMPT_AT] or None,
            success_at=floats[_SUCCESS_AT] or None,
            failures=self._words[_FAILURES],
            owed_until=floats[_OWED_UNTIL],
        )

    @history.setter
    def history(self, history: History) -> None:
        floats = self._floats
        floats[_ATTEMPT_AT] = history.attempt_at or 0.0
        floats[_SUCCESS_AT] = history.success_at or 0.0
        floats[_OWED_UNTIL] = history.owed_until
        self._words[_FAILURES] = history.failures

    def claim(self) -> bool:
        """Take the right to fetch and write; False while anybody holds it. Never waits."""
        return self._board.claim(self._index)

    def release(self) -> None:
        self._board.release(self._index)

    def read(self) -> tuple[int, bytes] | None:
        """The generation and its document. None before the first one, or while it is written (or
        for good if its writer died then, until the next): the checksum tells."""
        words = self._words
        generation, length = words[_GENERATION], words[_LENGTH]
        if generation == 0 or length > MAX_DOCUMENT_BYTES:
            return None
        document = bytes(self._body[:length])
        if zlib.crc32(document) != words[_CHECKSUM] or words[_GENERATION] != generation:
            return None
        return generation, document

    def publish(self, document: bytes) -> None:
        """Make `document` (at most 512 KiB) everybody's. The same one again changes nothing."""
        current = self.read()
        if current is not None and current[1] == document:
            return
        words = self._words
        words[_LENGTH] = len(document)
        self._body[: len(document)] = document
        words[_CHECKSUM] = zlib.crc32(document)
        words[_GENERATION] += 1


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("headrace-key-sets", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
