"""Key sets shared by the workers of one host, so that fetches count per host. Performs.

A board is made before the fork. Each issuer's documents have a slot: a header, the bytes last
fetched, and a claim that one process at a time holds while it fetches. The claim is a record
lock (POSIX, `fcntl.lockf`) on an anonymous file: the kernel gives it up for a process that dies.

Slots are given out by name, also long after the fork, when a reload names other issuers. Whoever
uses one says so from time to time; one of which nobody has said so for UNUSED_S is given away.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import tempfile
import weakref
import zlib
from collections.abc import Callable
from functools import partial

from auth.keyset import MAX_DOCUMENT_BYTES
from auth.refresh import History
from core.shared_memory import SharedRows

SLOTS = 32
UNUSED_S = 120.0
_HEADER_BYTES = 128
_NAME_BYTES = 16

# Words of the header; the first two hold the slot's name.
_GENERATION, _LENGTH, _CHECKSUM, _ATTEMPT_AT, _SUCCESS_AT, _FAILURES, _OWED_UNTIL = range(2, 9)
_USED_AT = 9

_log = logging.getLogger("headrace.auth")


class Board:
    """`slots` slots of shared memory, given out by name. Memory is used only where written."""

    def __init__(self, slots: int = SLOTS) -> None:
        self.slots = slots
        self._rows = SharedRows(slots, _HEADER_BYTES + MAX_DOCUMENT_BYTES)
        self._file = _anonymous_file()
        self._claimed: set[int] = set()
        weakref.finalize(self, os.close, self._file)

    def __repr__(self) -> str:
        return f"<Board {self.slots} slots, claimed here: {sorted(self._claimed)}>"

    def slot(self, name: str, now: float) -> Slot:
        """The slot of this name, the same in every process. When none is free it is one that this
        process shares with nobody. `now`: on the monotonic clock."""
        wanted = hashlib.sha256(name.encode()).digest()[:_NAME_BYTES]
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, self.slots)
        try:
            index = self._find(wanted)
            if index is None:
                index = self._take(wanted, now)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self.slots)
        if index is None:
            _log.warning("no slot is free for another key set: this worker fetches it for itself")
            return Board(1).slot(name, now)
        slot = Slot(self, index, self._rows.row(index), name)
        slot.touch(now)
        return slot

    def _find(self, wanted: bytes) -> int | None:
        for index in range(self.slots):
            if self._rows.row(index)[:_NAME_BYTES] == wanted:
                return index
        return None

    def _take(self, wanted: bytes, now: float) -> int | None:
        """A slot that has no name yet, or else the one that was unused for the longest time."""
        for named, used_at, index in sorted(self._state(index) for index in range(self.slots)):
            if named:
                if now - used_at < UNUSED_S:
                    return None
                if not self.claim(index):  # whoever fetches there is about to say so
                    continue
                _empty(self._rows.row(index))
                self.release(index)
            self._rows.row(index)[:_NAME_BYTES] = wanted
            return index
        return None

    def _state(self, index: int) -> tuple[bool, float, int]:
        header = self._rows.row(index)[:_HEADER_BYTES]
        return any(header[:_NAME_BYTES]), header.cast("d")[_USED_AT], index

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

    __slots__ = (
        *("_board", "_body", "_floats", "_index", "_name", "_name_bytes", "_words"),
        "read_generation",
    )

    def __init__(self, board: Board, index: int, row: memoryview, name: str) -> None:
        self._board = board
        self._index = index
        self._name = name
        self._name_bytes = bytes(row[:_NAME_BYTES])
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

    def touch(self, now: float) -> None:
        """It is in use; to be said more often than every UNUSED_S."""
        if self.held:
            self._floats[_USED_AT] = now

    @property
    def held(self) -> bool:
        """Whether it is still that of this name: it is not when it was not touched for long."""
        return self._words[:2].tobytes() == self._name_bytes

    def again(self, now: float) -> Slot:
        """The slot of the same name, once this one is not `held` any more."""
        return self._board.slot(self._name, now)

    def claim(self) -> bool:
        """Take the right to fetch and write; False while anybody holds it. Never waits."""
        if self._board.claim(self._index):
            if self.held:
                return True
            self._board.release(self._index)
        return False

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
        return (generation, document) if self.held else None

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


def _empty(row: memoryview) -> None:
    """Of all but its generation, which rises: whoever still reads it sees that."""
    words = row[:_HEADER_BYTES].cast("Q")
    words[_GENERATION] += 1
    words[_CHECKSUM] = 1  # of no document, so that there is none
    for word in (_LENGTH, _ATTEMPT_AT, _SUCCESS_AT, _FAILURES, _OWED_UNTIL):
        words[word] = 0


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("headrace-key-sets", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
