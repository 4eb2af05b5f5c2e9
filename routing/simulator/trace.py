"""What is asked of the replicas: requests with instants, lengths and blocks, from public traces.

Formats are told apart by their first line, gzip by the name:

- JSON lines with `timestamp` (ms), `input_length`, `output_length` and `hash_ids` (Mooncake). The
  block size is found from the lengths; the last id may stand for a partial block, which nobody can
  share. With `session_id`, `turn` and `delay_ms`, a turn comes so long after the previous answer.
- CSV with `TIMESTAMP,ContextTokens,GeneratedTokens` (Azure 2023). It has no prefixes: sessions are
  synthesised, and `note` says so.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import random
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec

from core.errors import ConfigError

_BLOCK_SIZES = (16, 32, 64, 128, 256, 512, 1024)
_AZURE_BLOCK = 64
_LOOKED_AT = 200
_CONTINUES = 0.7
_LONGEST_PAUSE_S = 300.0
_SHORTEST_PAUSE_S = 3.0
_OPEN_SESSIONS = 256
SAMPLE = "sample"


@dataclass(frozen=True, slots=True)
class Request:
    """`at`: seconds from the start, or with `after` (the number of the request before it in its
    session) seconds after the end of that one's answer. `blocks`: one id for each full block,
    which stands for everything up to its end."""

    number: int
    at: float
    length: int
    output: int
    blocks: tuple[int, ...]
    after: int | None = None
    session: int | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """`spread_s`: each seed moves arrivals by up to so much: the trace's own resolution (3 s in
    Mooncake's) or the mean gap between arrivals, if that is more."""

    name: str
    block_tokens: int
    requests: tuple[Request, ...]
    spread_s: float
    note: str = ""

    @property
    def ceiling(self) -> float:
        """The share of prompt tokens that one boundless cache would have."""
        seen: set[int] = set()
        held = total = 0
        for request in self.requests:
            count = 0
            for block in request.blocks:
                if block not in seen:
                    break
                count += 1
            held += min(count * self.block_tokens, request.length - 1)
            total += request.length
            seen.update(request.blocks)
        return held / total if total else 0.0

    def arrivals(self, speed: float, seed: int) -> list[Request]:
        """The requests at `speed` times their pace, moved a little by `seed`. Pauses inside a
        session stay as they are."""
        draw = random.Random(seed)
        spread = [
            request
            if request.after is not None
            else replace(request, at=(request.at + draw.random() * self.spread_s) / speed)
            for request in self.requests
        ]
        return sorted(spread, key=lambda request: (request.at, request.number))

    def first(self, count: int | None) -> Trace:
        """Only the first `count` requests."""
        return self if count is None else replace(self, requests=self.requests[:count])


_Instant = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
_Length = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
_Block = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Row(msgspec.Struct):
    """`timestamp` in milliseconds."""

    timestamp: _Instant
    input_length: _Length
    output_length: _Length
    hash_ids: list[_Block]
    session_id: int | None = None
    turn: int = 0
    delay_ms: Annotated[float, msgspec.Meta(ge=0, le=1e15)] = 0.0


def load(path: str) -> Trace:
    """The trace in a file, or the built-in `sample`. Raises ConfigError."""
    if path == SAMPLE:
        return sample()
    file = Path(path)
    try:
        data = file.read_bytes()
        text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read as a trace: {why}") from error
    return parse(file.name.removesuffix(".gz").rpartition(".")[0] or file.name, text, path)


def parse(name: str, text: str, where: str) -> Trace:
    """The trace in `text`. Raises ConfigError naming `where` and the line."""
    lines = text.splitlines()
    if lines and lines[0].lstrip().startswith("{"):
        return _json_lines(name, lines, where)
    if lines and lines[0].startswith("TIMESTAMP,ContextTokens,GeneratedTokens"):
        return _azure(name, lines, where)
    raise ConfigError(
        f"{where}: neither JSON lines with `timestamp`, `input_length`, `output_length` and "
        "`hash_ids` nor CSV with TIMESTAMP,ContextTokens,GeneratedTokens"
    )


def _json_lines(name: str, lines: Sequence[str], where: str) -> Trace:
    decoder = msgspec.json.Decoder(_Row)
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                rows.append(decoder.decode(line))
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise ConfigError(f"{where}:{number}: {error}") from error
    block = _block_size(rows, where)
    sessions: dict[int, int] = {}
    requests = []
    for number, row in enumerate(rows):
        blocks = tuple(row.hash_ids[: row.input_length // block])
        after = None if row.session_id is None else sessions.get(row.session_id)
        at = row.timestamp / 1e3 if after is None else row.delay_ms / 1e3
        output = max(row.output_length, 1)
        length = max(row.input_length, 1)
        requests.append(Request(number, at, length, output, blocks, after, row.session_id))
        if row.session_id is not None:
            sessions[row.session_id] = number
    starts = [request.at for request in requests if request.after is None]
    return Trace(name, block, tuple(requests), _spread(starts))


def _block_size(rows: Sequence[_Row], where: str) -> int:
    """The size that explains the number of ids: full blocks, or with a partial one."""
    sample = [row for row in rows if row.hash_ids][:_LOOKED_AT]
    for size in _BLOCK_SIZES:
        if all(0 <= -(-row.input_length // size) - len(row.hash_ids) <= 1 for row in sample):
            return size
    raise ConfigError(f"{where}: the numbers of `hash_ids` fit no block size in {_BLOCK_SIZES}")


def _spread(starts: Sequence[float]) -> float:
    different = sorted(set(starts))
    gaps = [b - a for a, b in itertools.pairwise(different)]
    span = different[-1] - different[0] if different else 0.0
    return max(min(gaps, default=0.0), span / max(len(starts), 1))


def _azure(name: str, lines: Sequence[str], where: str) -> Trace:
    rows = []
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            lengths = row["ContextTokens"], row["GeneratedTokens"]
            rows.append((at, *msgspec.convert(lengths, tuple[_Length, _Length], strict=False)))
        except (TypeError, ValueError, msgspec.ValidationError) as error:
            raise ConfigError(f"{where}:{number}: {error}") from error
    if not rows:
        raise ConfigError(f"{where}: there are no requests")
    requests = tuple(_synthesised(rows))
    return Trace(
        name,
        _AZURE_BLOCK,
        requests,
        _spread([request.at for request in requests]),
        "its prefixes are synthesised: the trace has lengths and instants only",
    )


def _synthesised(rows: Iterable[tuple[float, int, int]]) -> Iterator[Request]:
    """Requests that may continue a conversation: 70 % of those that are longer than an earlier
    one with its answer, 3 to 300 s after it, are taken for its next turn."""
    draw = random.Random(0)
    talks: list[tuple[float, int, list[int]]] = []  # ready at, its length, its blocks
    fresh = 0
    first = None
    for number, (at, length, output) in enumerate(rows):
        first = at if first is None else first
        blocks: list[int] = []
        fitting = [
            talk
            for talk in talks
            if talk[1] < length and _SHORTEST_PAUSE_S <= at - talk[0] <= _LONGEST_PAUSE_S
        ]
        if fitting and draw.random() < _CONTINUES:
            talk = max(fitting, key=lambda talk: talk[1])
            talks.remove(talk)
            blocks = list(talk[2])
        missing = length // _AZURE_BLOCK - len(blocks)
        blocks += range(fresh, fresh + missing)
        fresh += max(missing, 0)
        talks.append((at, length + output, blocks))
        del talks[:-_OPEN_SESSIONS]
        yield Request(number, at - first, max(length, 1), max(output, 1), tuple(blocks))


def sample(sessions: int = 60, turns: int = 4, seed: int = 0) -> Trace:
    """A small trace of our own: conversations with one system prompt, and one long document in
    twelve. Every turn continues the one before it."""
    draw = random.Random(seed)
    block = 64
    system = tuple(range(8))
    fresh = len(system)
    requests: list[Request] = []
    at = 0.0
    for session in range(sessions):
        at += draw.expovariate(1.0)
        blocks, before = system, None
        for turn in range(turns):
            size = draw.randrange(2, 24) + (320 if turn == 0 and session % 12 == 5 else 0)
            blocks = blocks + tuple(range(fresh, fresh + size))
            fresh += size
            due = at if before is None else 1.0 + draw.expovariate(0.5)
            length = len(blocks) * block + draw.randrange(1, block)
            number = len(requests)
            output = draw.randrange(8, 400)
            requests.append(Request(number, due, length, output, blocks, before, session))
            before = number
    return Trace(SAMPLE, block, tuple(requests), 0.5, "a synthetic trace of this project")
