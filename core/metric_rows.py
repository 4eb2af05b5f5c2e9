"""How one process's metrics lie in shared memory, and how rows become families again.

A row is four words, then values (doubles), then a directory. Label sets appear after the fork and
differ from worker to worker, so each row describes itself: its directory is JSON lines, first the
family, then each of its series with the slot of its first value. Lines are only ever appended, and
the directory's length is published last, so a reader never sees half a line. Only when a series is
removed are lines moved; a reader sees by the row's version that this happened, and reads again.

Slots of a series: counter and gauge [value]; histogram [sum, count of each bucket, the +Inf one
last], buckets not cumulative.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Labels: TypeAlias = tuple[str, ...]

if TYPE_CHECKING:
    Cells: TypeAlias = memoryview[float]
else:
    Cells = memoryview

HEADER_BYTES = 64
VALUE_SLOTS = 16_384
DIRECTORY_BYTES = 512 * 1024
ROW_BYTES = HEADER_BYTES + VALUE_SLOTS * 8 + DIRECTORY_BYTES
"""Pages never written cost nothing."""

READ_TRIES = 40
"""A removal takes microseconds; an owner that died in one must not stop readers."""

_LENGTH, _USED, _EPOCH, _VERSION = range(4)


class FamilyEntry(msgspec.Struct, array_like=True, frozen=True, tag="f"):
    """The definition of one metric. `bounds` are a histogram's upper bounds without +Inf."""

    kind: Kind
    name: str
    help: str
    labels: Labels
    bounds: tuple[float, ...]

    @property
    def width(self) -> int:
        """Slots that one series of this family takes."""
        return len(self.bounds) + 2 if self.kind == "histogram" else 1

    def agrees_with(self, other: FamilyEntry) -> bool:
        """May series of both be added up? The help text may differ."""
        mine = (self.kind, self.name, self.labels, self.bounds)
        return mine == (other.kind, other.name, other.labels, other.bounds)


class SeriesEntry(msgspec.Struct, array_like=True, frozen=True, tag="s"):
    """One label set. `family` counts the family lines of the same directory from 0."""

    family: int
    slot: int
    values: Labels


@dataclass(slots=True)
class Family:
    """One metric summed over rows: label values -> slots (see the head of this file)."""

    entry: FamilyEntry
    series: dict[Labels, list[float]] = field(default_factory=dict)


Reading: TypeAlias = tuple[FamilyEntry, Labels, list[float]]

LABEL_CHARACTERS = 128
"""Longer label values are cut."""


def clean(value: str) -> str:
    """A label value that can be shown."""
    return str(value)[:LABEL_CHARACTERS].encode("utf-8", "replace").decode()


def void(width: int) -> Cells:
    """Slots that nobody reads."""
    return memoryview(bytearray(width * 8)).cast("d")


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(FamilyEntry | SeriesEntry)


class MetricRow:
    """One row: its owner allocates and appends, anyone reads, the supervisor clears."""

    __slots__ = ("_directory", "_families", "_free", "_words", "cells")

    def __init__(self, memory: memoryview) -> None:
        values_end = HEADER_BYTES + VALUE_SLOTS * 8
        self._words = memory[:HEADER_BYTES].cast("Q")
        self.cells: Cells = memory[HEADER_BYTES:values_end].cast("d")
        self._directory = memory[values_end:]
        self._families = 0
        self._free: dict[int, list[int]] = {}

    def __repr__(self) -> str:
        return f"<MetricRow {self.used_slots} slots, {self._words[_LENGTH]} bytes of directory>"

    @property
    def used_slots(self) -> int:
        return self._words[_USED]

    @property
    def epoch(self) -> int:
        """Odd while the supervisor moves values between rows (kept in the base row alone)."""
        return self._words[_EPOCH]

    def advance_epoch(self) -> None:
        self._words[_EPOCH] += 1

    def add_family(self, entry: FamilyEntry) -> int | None:
        """The family's number in this row; None when the row is full."""
        if not self._append(_encoder.encode(entry) + b"\n", self._words[_USED]):
            return None
        self._families += 1
        return self._families - 1

    def add_series(self, family: int, width: int, values: Labels) -> int | None:
        """The first of `width` zeroed slots; None when the row is full."""
        free = self._free.get(width)
        slot = free[-1] if free else self._words[_USED]
        used = max(self._words[_USED], slot + width)
        if used > VALUE_SLOTS or not self._append(_line(family, slot, values), used):
            return None
        if free:
            free.pop()
        return slot

    def remove_series(self, family: int, width: int, values: Labels, slot: int) -> None:
        """Forget a series; others may get its slots."""
        words = self._words
        directory = bytes(self._directory[: words[_LENGTH]])
        kept = directory.replace(_line(family, slot, values), b"", 1)
        words[_VERSION] += 1
        self._directory[: len(kept)] = kept
        words[_LENGTH] = len(kept)
        self.cells[slot : slot + width] = memoryview(bytes(width * 8)).cast("d")
        words[_VERSION] += 1
        self._free.setdefault(width, []).append(slot)

    def _append(self, line: bytes, used: int) -> bool:
        start = self._words[_LENGTH]
        end = start + len(line)
        if end > len(self._directory):
            return False
        self._directory[start:end] = line
        self._words[_USED] = used
        self._words[_LENGTH] = end
        return True

    def read(self) -> list[Reading]:
        """Every series with a copy of its slots. Raises msgspec.DecodeError or IndexError if
        caught mid-clear."""
        for _ in range(READ_TRIES):
            version = self._words[_VERSION]
            directory = bytes(self._directory[: self._words[_LENGTH]])
            values = list(self.cells[: self._words[_USED]])
            if version % 2 == 0 and version == self._words[_VERSION]:
                break
        return list(_parse(directory, values))

    def clear(self) -> None:
        """Forget everything: for the supervisor, when the owner is dead."""
        used = self._words[_USED]
        self._words[_LENGTH] = 0
        self.cells[:used] = memoryview(bytes(used * 8)).cast("d")
        self._words[_USED] = 0
        self._words[_VERSION] += self._words[_VERSION] % 2  # its owner may have died in a removal
        self._families = 0
        self._free.clear()


def _line(family: int, slot: int, values: Labels) -> bytes:
    return _encoder.encode(SeriesEntry(family, slot, values)) + b"\n"


def _parse(directory: bytes, values: list[float]) -> Iterator[Reading]:
    families: list[FamilyEntry] = []
    for entry in _decoder.decode_lines(directory):
        if isinstance(entry, FamilyEntry):
            families.append(entry)
        else:
            family = families[entry.family]
            yield family, entry.values, values[entry.slot : entry.slot + family.width]


def merge(rows: Iterable[Iterable[Reading]]) -> dict[str, Family]:
    """Sum the rows by family and label set. Of definitions that disagree the first one counts."""
    families: dict[str, Family] = {}
    for row in rows:
        for entry, labels, values in row:
            family = families.get(entry.name)
            if family is None:
                family = families[entry.name] = Family(entry)
            elif family.entry is not entry and not family.entry.agrees_with(entry):
                continue
            have = family.series.get(labels)
            if have is None:
                family.series[labels] = values
            else:
                family.series[labels] = [a + b for a, b in zip(have, values, strict=True)]
    return families
