"""A map from 64-bit keys to 64-bit values in memory: one process writes it, all read it at once.

Open addressing in an anonymous shared mapping, made before the fork. A slot is two words, the key
xor the value and the value: whoever reads words of two different writes finds another key there,
and goes on. So a reader needs no lock, whatever the writer does meanwhile, even if it dies between
two words; now and then it misses an entry that is being moved, and never takes one for another.

What is removed leaves no mark: later entries of its run move up, each written to its new place
before it leaves the old one.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator

PROBES = 128
"""An entry is at most so many slots from where it belongs."""
_SLOT = struct.Struct("@QQ")
_CHUNK = 16_384


class SharedMap:
    """Room for `entries`, 32 bytes for each; pages never written cost nothing. Keys should be
    spread evenly, as hashes are. The value 0 stands for nothing.

    Writing, and `len`, are for one process alone. `refused` counts what found no room.
    """

    def __init__(self, entries: int) -> None:
        self.entries = max(entries, 1)
        self._slots = 2 * self.entries
        # The last slot stays free: every run ends.
        self._memory = mmap.mmap(-1, (self._slots + PROBES + 1) * _SLOT.size)
        self._words = memoryview(self._memory).cast("Q")
        self._put = _SLOT.pack_into
        self._count = 0
        self.refused = 0

    def __repr__(self) -> str:
        return f"<SharedMap {self._count} of {self.entries} entries>"

    def __len__(self) -> int:
        return self._count

    def get(self, key: int, default: int = 0, /) -> int:
        """By any process."""
        words = self._words
        at = 2 * (key % self._slots)
        end = at + 2 * PROBES
        while at < end:
            mixed = words[at]
            value = words[at + 1]
            if not value:
                break
            if mixed ^ value == key:
                return value
            at += 2
        return default

    def __setitem__(self, key: int, value: int, /) -> None:
        words = self._words
        start = 2 * (key % self._slots)
        for at in range(start, start + 2 * PROBES, 2):
            held = words[at + 1]
            if not held:
                if self._count >= self.entries:
                    break
                self._count += 1
            elif words[at] ^ held != key:
                continue
            self._put(self._memory, at << 3, key ^ value, value)
            return
        self.refused += 1

    def pop(self, key: int, default: int = 0, /) -> int:
        """Remove an entry; returns its value."""
        words = self._words
        start = 2 * (key % self._slots)
        for at in range(start, start + 2 * PROBES, 2):
            value = words[at + 1]
            if not value:
                break
            if words[at] ^ value == key:
                self._remove(at)
                return value
        return default

    def _remove(self, hole: int) -> None:
        words, slots, put, memory = self._words, self._slots, self._put, self._memory
        self._count -= 1
        at = hole + 2
        while value := words[at + 1]:
            mixed = words[at]
            if 2 * ((mixed ^ value) % slots) <= hole:
                put(memory, hole << 3, mixed, value)
                hole = at
            at += 2
        put(memory, hole << 3, 0, 0)

    def adopt(self) -> Iterator[tuple[int, int]]:
        """Go on as the writer after another one that may have died at any moment: all keys and
        values, of which `len` knows when the iteration is over. Nothing may be written before."""
        words, count = self._words, 0
        doubled = []
        for start in range(0, len(words), 2 * _CHUNK):
            chunk = words[start : start + 2 * _CHUNK].tolist()
            for offset in range(1, len(chunk), 2):
                if value := chunk[offset]:
                    key = chunk[offset - 1] ^ value
                    at = start + offset - 1
                    if self._place(key) == at:
                        count += 1
                        yield key, value
                    else:  # it was being moved, or half of it was written
                        doubled.append(at)
        self._count = count
        for at in reversed(doubled):
            self._count += 1
            self._remove(at)

    def clear(self) -> None:
        """Remove all at once; its memory is free."""
        self._memory.madvise(mmap.MADV_REMOVE)
        self._count = 0

    def _place(self, key: int) -> int:
        """Where an entry of this key is found; -1: nowhere."""
        words = self._words
        start = 2 * (key % self._slots)
        for at in range(start, start + 2 * PROBES, 2):
            value = words[at + 1]
            if not value:
                break
            if words[at] ^ value == key:
                return at
        return -1
