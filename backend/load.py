"""Reads a replica's load from the text of its /metrics. Pure.

Not a parser of the exposition format: of 70 kB only four families matter, so they are found by
name. The result is an audit of our own counts, never the main signal (it lags by an engine step
and by the scrape interval).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from core.replica import Load


@dataclass(frozen=True, slots=True)
class LoadNames:
    """The families of one engine: three gauges, the label that tells data-parallel ranks apart,
    and the size of the cache: the gauge `kv_tokens`, or an info metric with two of its labels.
    `split_by`: a label of samples that say again what the one without it says as a whole."""

    running: bytes
    waiting: bytes
    kv_use: bytes
    rank: bytes
    kv_tokens: bytes = b""
    cache_info: bytes = b""
    block_size: bytes = b""
    blocks: bytes = b""
    split_by: bytes = b""


def parse_load(text: bytes, names: LoadNames, now: float, rank: int | None = None) -> Load | None:
    """The load at `now` (monotonic seconds), or None when the text does not have it.

    Data-parallel engines behind one address are added up, unless one is asked for; their KV use is
    averaged.
    """
    label = b"" if rank is None else b'%b="%d"' % (names.rank, rank)
    running = _totals(text, names.running, label, names.split_by)
    waiting = _totals(text, names.waiting, label, names.split_by)
    if not running or not waiting:
        return None
    kv_use = [value for _, value in _samples(text, names.kv_use, label)]
    return Load(
        running=sum(running),
        waiting=sum(waiting),
        kv_use=sum(kv_use) / len(kv_use) if kv_use else 0.0,
        observed_at=now,
        kv_tokens=_kv_tokens(text, names, label),
    )


def _totals(text: bytes, name: bytes, label: bytes, split_by: bytes) -> list[float]:
    samples = _samples(text, name, label)
    if not split_by:
        return [value for _, value in samples]
    given, empty = split_by + b'="', split_by + b'=""'
    return [value for labels, value in samples if given not in labels or empty in labels]


def _kv_tokens(text: bytes, names: LoadNames, label: bytes) -> int | None:
    """Of all engines; None when any of them does not say."""
    if names.kv_tokens:
        return int(sum(value for _, value in _samples(text, names.kv_tokens, label))) or None
    total = 0
    for labels, _ in _samples(text, names.cache_info, label):
        block_size = _integer_label(labels, names.block_size)
        blocks = _integer_label(labels, names.blocks)
        if block_size is None or blocks is None:
            return None
        total += block_size * blocks
    return total or None


def _samples(text: bytes, name: bytes, label: bytes) -> Iterator[tuple[bytes, float]]:
    """Labels and value of every sample of exactly this name whose value is a finite number >= 0;
    only those that have `label`."""
    at = 0 if text.startswith(name) else _next_line(text, name, 0)
    while at >= 0:
        end = text.find(b"\n", at)
        line = text[at + len(name) : end if end >= 0 else len(text)]
        labels, _, rest = line.rpartition(b"}")
        # A family whose name only begins like this one goes on with another character.
        if line[:1] in (b"{", b" ") and label in labels and (value := _number(rest)) is not None:
            yield labels, value
        at = _next_line(text, name, end) if end >= 0 else -1


def _next_line(text: bytes, name: bytes, start: int) -> int:
    """Where the next line that starts with `name` starts, or -1."""
    found = text.find(b"\n" + name, start)
    return found + 1 if found >= 0 else -1


def _number(rest: bytes) -> float | None:
    """The value before an optional timestamp."""
    words = rest.split(None, 1)
    try:
        value = float(words[0])
    except (IndexError, ValueError):
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _integer_label(labels: bytes, name: bytes) -> int | None:
    found = re.search(rb'[{,]\s*%s="(\d{1,12})"' % re.escape(name), labels)
    return int(found[1]) if found else None
