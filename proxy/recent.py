"""The latest exchanges of all workers, in memory that each of them reads: for the live page.

Each worker writes its own row, a ring of places. All failures are kept; of what went well, of what
was refused and of what was traced a few each second. A reader may meet a place that is being
written: what is no JSON then is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from core.shared_memory import SharedRows
from proxy.access_log import AccessRecord, line_of

PLACES = 64
PLACE_BYTES = 2048
APART_S = 0.2
"""Exchanges that went well are kept this far apart, and refusals too."""
_LENGTH_BYTES = 2


class RecentBoard:
    """Made before the fork."""

    def __init__(self, workers: int) -> None:
        rows = SharedRows(workers, PLACES * PLACE_BYTES)
        self._rows = [rows.row(index) for index in range(workers)]

    def __repr__(self) -> str:
        return f"<RecentBoard of {len(self._rows)}>"

    @property
    def places(self) -> int:
        """So many records there are at most."""
        return len(self._rows) * PLACES

    def for_worker(self, index: int) -> RecentRow:
        return RecentRow(self._rows[index])

    def read(self, most: int = 100) -> list[Mapping[str, Any]]:
        """The latest records, the newest first."""
        found = [record for row in self._rows for record in _read(row)]
        found.sort(key=lambda record: str(record.get("time", "")), reverse=True)
        return found[:most]


class RecentRow:
    """One worker's places, for that worker."""

    __slots__ = ("_next", "_refused_at", "_row", "_traced_at", "_well_at")

    def __init__(self, row: memoryview) -> None:
        self._row = row
        self._next = 0
        self._well_at = self._refused_at = self._traced_at = float("-inf")

    def __repr__(self) -> str:
        return f"<RecentRow next={self._next}>"

    def take(self, record: AccessRecord, now: float) -> None:
        """Keep `record`, which is complete, if it is one of those that are kept."""
        if record.trace_id is not None and now - self._traced_at >= APART_S:
            self._traced_at = now
        elif record.reason == "ok":
            if now - self._well_at < APART_S:
                return
            self._well_at = now
        elif 400 <= (record.status or 0) < 500:
            if now - self._refused_at < APART_S:
                return
            self._refused_at = now
        if record.time is None:
            record.time = datetime.now(UTC)
        record.word_phases()
        trail, record.trail = record.trail, []  # still to be counted
        line = line_of(record)
        record.trail = trail
        length = len(line)
        if length > PLACE_BYTES - _LENGTH_BYTES:
            return
        start = self._next * PLACE_BYTES
        self._next = (self._next + 1) % PLACES
        place = self._row[start : start + PLACE_BYTES]
        place[:_LENGTH_BYTES] = bytes(_LENGTH_BYTES)  # nothing, while it is written
        place[_LENGTH_BYTES : _LENGTH_BYTES + length] = line
        place[:_LENGTH_BYTES] = length.to_bytes(_LENGTH_BYTES, "little")


def _read(row: memoryview) -> Iterator[Mapping[str, Any]]:
    for start in range(0, PLACES * PLACE_BYTES, PLACE_BYTES):
        length = int.from_bytes(row[start : start + _LENGTH_BYTES], "little")
        if not length or length > PLACE_BYTES - _LENGTH_BYTES:
            continue
        line = bytes(row[start + _LENGTH_BYTES : start + _LENGTH_BYTES + length])
        try:
            record = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(record, dict):
            yield record
