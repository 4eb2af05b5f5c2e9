"""A `SharedMap` for values of more than 64 bits: an entry for each 64 of them that are not 0."""

from __future__ import annotations

from collections.abc import Iterator

from core.shared_map import SharedMap

WORD_BITS = 64
_WORD = (1 << WORD_BITS) - 1
_STEP = 0x9E3779B97F4A7C15  # odd: no two parts of a key are the same


class WideMap:
    """Values of up to `parts` times 64 bits. Room for `entries` parts of values."""

    def __init__(self, entries: int, parts: int) -> None:
        self._map = SharedMap(entries)
        self._salts = [number * _STEP & _WORD for number in range(parts)]

    def __repr__(self) -> str:
        return f"<WideMap {self._map}>"

    def __len__(self) -> int:
        """In entries."""
        return len(self._map)

    @property
    def entries(self) -> int:
        return self._map.entries

    @property
    def refused(self) -> int:
        return self._map.refused

    def get(self, key: int, default: int = 0, /) -> int:
        get, value, shift = self._map.get, 0, 0
        for salt in self._salts:
            if part := get(key ^ salt):
                value |= part << shift
            shift += WORD_BITS
        return value or default

    def __setitem__(self, key: int, value: int, /) -> None:
        for salt in self._salts:
            part = value & _WORD
            if part:
                self._map[key ^ salt] = part
            else:
                self._map.pop(key ^ salt)
            value >>= WORD_BITS

    def pop(self, key: int, default: int = 0, /) -> int:
        """Remove an entry; returns its value."""
        value = shift = 0
        for salt in self._salts:
            value |= self._map.pop(key ^ salt) << shift
            shift += WORD_BITS
        return value or default

    def adopt(self) -> Iterator[tuple[int, int]]:
        """As that of `SharedMap`, but with nothing in it: an entry does not tell which part of a
        value it is."""
        self._map.clear()
        return iter(())
