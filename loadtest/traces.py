"""Recorded traffic: when each request came, how long it was, what it shared. Decides.

Formats, plain or gzip: Mooncake's and alike (JSON lines with `timestamp` in milliseconds,
`input_length`, `output_length` and `hash_ids` of blocks that later requests share), Azure's
(CSV: TIMESTAMP, ContextTokens, GeneratedTokens) and BurstGPT's (CSV: Timestamp in seconds,
Request tokens, Response tokens).
"""

from __future__ import annotations

import csv
import gzip
import math
import random
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec

from loadtest.scenario import Constant, Model, Requests, Scenario
from loadtest.schedule import Session, Turn

TOKENS_PER_WORD = 1.3
"""Of the corpus's common English words, by most tokenizers."""


class TraceError(Exception):
    """One sentence: the file, the line, what is wrong."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request. `at_s` counts from the first one. `blocks`: ids of the prompt's leading blocks,
    the same for the same text; empty where the trace does not tell."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


_Instant = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
_Length = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
_Block = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Line(msgspec.Struct):
    """`timestamp` in milliseconds."""

    timestamp: _Instant
    input_length: _Length
    output_length: _Length
    hash_ids: tuple[_Block, ...] = ()

    @property
    def row(self) -> Row:
        return Row(self.timestamp / 1e3, self.input_length, self.output_length, self.hash_ids)


def load(path: Path) -> list[Row]:
    """In the order of their times. TraceError."""
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    lines = data.decode("utf-8", "replace").splitlines()
    if not lines:
        raise TraceError(f"{path}: empty")
    rows = _json(lines, path) if lines[0].lstrip().startswith("{") else _csv(lines, path)
    found = sorted(rows, key=lambda row: row.at_s)
    if not found:
        raise TraceError(f"{path}: no requests")
    first = found[0].at_s
    return [replace(row, at_s=row.at_s - first) for row in found]


def _json(lines: Sequence[str], path: Path) -> Iterator[Row]:
    decoder = msgspec.json.Decoder(_Line)
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                each = decoder.decode(line)
            except msgspec.DecodeError as error:
                raise TraceError(f"{path}: line {number}: {error}") from error
            yield each.row


def _csv(lines: Iterable[str], path: Path) -> Iterator[Row]:
    reader = csv.DictReader(lines)
    names = {name.strip().lower(): name for name in reader.fieldnames or ()}
    azure = ("timestamp", "contexttokens", "generatedtokens")
    burst = ("timestamp", "request tokens", "response tokens")
    columns = next((each for each in (azure, burst) if set(each) <= set(names)), None)
    if columns is None:
        raise TraceError(f"{path}: line 1: columns of no format that is known")
    at, prompt, output = (names[name] for name in columns)
    for number, row in enumerate(reader, 2):
        try:
            said = {
                "timestamp": _instant(row[at]) * 1e3,
                "input_length": float(row[prompt] or "") // 1,
                "output_length": float(row[output] or "") // 1,
            }
            yield msgspec.convert(said, _Line, strict=False).row
        except (TypeError, ValueError, msgspec.ValidationError) as error:
            raise TraceError(f"{path}: line {number}: {error}") from error


def _instant(text: str) -> float:
    """Seconds; nan is none."""
    try:
        return float(text) if float(text) == float(text) else math.inf
    except ValueError:
        return datetime.fromisoformat(text.strip()[:26]).timestamp()


def shortened(row: Row, most_output: int) -> Row:
    return replace(row, output_tokens=min(row.output_tokens, max(1, most_output)))


def mean_rate(rows: Sequence[Row]) -> float:
    """Requests per second over the whole trace."""
    return len(rows) / max(rows[-1].at_s, 1e-9)


def block_tokens(rows: Sequence[Row]) -> int:
    """How long a block is: the power of two that fits the lengths best. 0 without blocks."""
    sizes = sorted(row.prompt_tokens / len(row.blocks) for row in rows if row.blocks)
    return 1 << max(0, round(math.log2(max(sizes[len(sizes) // 2], 1)))) if sizes else 0


def scenario_of(name: str, rows: Sequence[Row], speed: float, model: str) -> Scenario:
    """What the run is called and bounded by; the plan says what is sent."""
    duration_s = rows[-1].at_s / speed + 1.0
    return Scenario(
        name=name,
        description=f"{len(rows)} requests of a trace, {speed:g} times as fast",
        arrivals=Constant(rate=max(len(rows) / duration_s, 1e-9)),
        requests=[Requests(name="replay", prompt=0, output=0)],
        models=[Model(name=model)],
        duration_s=duration_s,
    )


def plan_of(
    rows: Sequence[Row], scenario: Scenario, *, speed: float, jitter_s: float, seed: int
) -> list[Session]:
    """A session of one turn for each request, the earliest first. `jitter_s`: each is moved by up
    to so much, where a trace's clock is coarse."""
    rng = random.Random(seed)
    kind = scenario.requests[0]
    due: list[tuple[float, Row]] = [
        (row.at_s / speed + rng.uniform(0, jitter_s), row) for row in rows
    ]
    due.sort(key=lambda pair: pair[0])
    block_words = round(block_tokens(rows) / TOKENS_PER_WORD)
    return [
        Session(
            number=number,
            due_s=due_s,
            kind=kind,
            model=scenario.models[0].name,
            group=0,
            place=rng.randrange(1 << 30),
            pause_s=0.0,
            turns=(_turn(row),),
            blocks=row.blocks,
            block_words=block_words,
        )
        for number, (due_s, row) in enumerate(due)
    ]


def _turn(row: Row) -> Turn:
    return Turn(
        prompt_words=max(1, round(row.prompt_tokens / TOKENS_PER_WORD)),
        output_tokens=max(1, row.output_tokens),
        think_s=0.0,
        leave_after=None,
    )
