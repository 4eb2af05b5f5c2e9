"""What a run has found, as it is kept in `result.json`. Decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

FORMAT = 1


class ResultError(Exception):
    """One sentence: the file and what is wrong with it."""


class Percentile(Struct, kw_only=True):
    """`value` None: refused, there are fewer than `needed` samples. The interval is of 95 %."""

    quantile: float
    value: float | None
    low: float | None = None
    high: float | None = None
    needed: int = 1


class Metric(Struct, kw_only=True):
    """`formula` says what the number is, as other tools call others by the same name."""

    name: str
    unit: str
    formula: str
    count: int
    mean: float
    greatest: float
    percentiles: list[Percentile]


class Second(Struct, kw_only=True):
    """One second of the run, from its begin: requests by when they were due."""

    due: int = 0
    started: int = 0
    failed: int = 0
    tokens: int = 0
    ttft_p50_ms: float | None = None
    ttft_max_ms: float | None = None


class Histogram(Struct, kw_only=True):
    """Bin i > 0 begins at `low * 10 ** (i / per_decade)`; the first and the last are open."""

    unit: str
    low: float
    per_decade: int
    counts: list[int]


class Counts(Struct, kw_only=True):
    """Requests of the measured part, but for `warm_up`. `planned` 0: a closed loop."""

    planned: int
    started: int
    ok: int
    slow: int
    left: int
    unfinished: int
    failed: int
    warm_up: int
    errors: dict[str, int]
    statuses: dict[str, int]
    examples: dict[str, str]
    connections: int
    resumed: int
    reconnects: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class Verdict(Struct, kw_only=True):
    """Whether the figures are those of what was tested, and not of the client."""

    valid: bool
    reasons: list[str]
    notes: list[str]


class Rows(Struct, kw_only=True):
    """The answers that latency is made of, in columns: due seconds and milliseconds."""

    due_s: list[float]
    ttft_ms: list[float]
    e2e_ms: list[float]
    tpot_ms: list[float | None]


class Series(Struct, kw_only=True):
    """What one process of the server used (`of`, `what`), or one of its metrics, over time."""

    of: str
    what: str
    unit: str
    at_s: list[float]
    values: list[float]


class Event(Struct, kw_only=True):
    """What was done to the server by intent, and when; `problem` "": it was."""

    name: str
    at_s: float
    problem: str = ""


class Phase(Struct, kw_only=True):
    """One phase of the server in `Server-Timing`, of the answers that had it: milliseconds, and
    the mean over all answers that told anything."""

    name: str
    count: int
    mean: float
    p50: float
    p95: float
    p99: float


class Share(Struct, kw_only=True):
    """What one replica did in the run, by its own metrics (vLLM's names)."""

    replica: str
    requests: float
    prompt_tokens: float
    output_tokens: float
    cached_tokens: float


class Result(Struct, kw_only=True):
    format: int
    verdict: Verdict
    interrupted: bool
    measured_s: float
    rates: dict[str, float]
    counts: Counts
    metrics: list[Metric]
    by_kind: dict[str, list[Metric]]
    seconds: list[Second]
    gaps: Histogram
    rows: Rows
    about: dict[str, Any]
    series: list[Series] = []
    happened: list[Event] = []
    phases: list[Phase] = []
    shares: list[Share] = []

    def metric(self, name: str) -> Metric | None:
        return next((metric for metric in self.metrics if metric.name == name), None)


def encode(result: Result) -> bytes:
    return msgspec.json.format(msgspec.json.encode(result), indent=1)


def read(path: Path) -> Result:
    """Of the file, or of the one in the folder that `--out` named. ResultError."""
    file = path / "result.json" if path.is_dir() else path
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ResultError(f"{file}: {error.strerror}") from error
    return decode(data, str(file))


def decode(data: bytes, where: str) -> Result:
    """ResultError."""
    try:
        result = msgspec.json.decode(data, type=Result)
    except msgspec.DecodeError as error:
        raise ResultError(f"{where}: not the result of a run: {error}") from error
    if result.format != FORMAT:
        raise ResultError(f"{where}: format {result.format}, this version reads {FORMAT}")
    return result
