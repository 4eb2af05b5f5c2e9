"""An `EventScanner` whose output is kept."""

from __future__ import annotations

from collections.abc import Iterable

from proxy.scanner import EventScanner


class Collected:
    """What a scanner passed on: `out`, and after the terminator by its other door."""

    def __init__(self, *, strip: bool) -> None:
        self.out = b""
        self.scanner = EventScanner(self._write, self._end, strip_usage=strip)

    def push(self, data: bytes) -> bytes:
        """What came out of this push."""
        before = len(self.out)
        self.scanner.push(data)
        return self.out[before:]

    def _write(self, data: bytes) -> None:
        assert data
        assert not self.scanner.terminated
        self.out += data

    def _end(self, data: bytes) -> None:
        assert self.scanner.terminated
        self.out += data


def scan(
    pieces: Iterable[bytes], *, strip: bool, finish: bool = True
) -> tuple[bytes, EventScanner]:
    collected = Collected(strip=strip)
    for piece in pieces:
        collected.push(piece)
    scanner = collected.scanner
    return collected.out + (scanner.finish() if finish else b""), scanner
