"""What is kept of each request, and the raw samples of a run. Decides."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

OK = "ok"
LEFT = "left"  # by intent: a disconnect of the scenario
UNFINISHED = "unfinished"  # cut off when the run was ended


@dataclass(slots=True, eq=False)
class Record:
    """Instants are of one clock; 0 = never. `outcome` is OK, LEFT, UNFINISHED or a kind of error.

    arm: which of several targets was asked. due_at: when it should begin; started_at: when the
    client came to it; sent_at: when its connection was there and it was written. timing:
    milliseconds of the server's phases, as it says.
    """

    session: int
    turn: int
    kind: str
    due_at: float
    started_at: float = 0.0
    sent_at: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    ended_at: float = 0.0
    status: int = 0
    outcome: str = ""
    detail: str = ""
    slow: bool = False
    arm: int = 0
    pieces: int = 0
    gap_max: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    timing: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Opening:
    """One new connection. `tls_s` 0: without TLS."""

    at: float
    connect_s: float
    tls_s: float
    resumed: bool


@dataclass(slots=True)
class Seen:
    """One figure of one process of the server, or of its metrics, at several instants."""

    of: str
    what: str
    unit: str
    at: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))


@dataclass(frozen=True, slots=True)
class Happened:
    """What was done to the server by intent; `problem`: why it was not."""

    name: str
    at: float
    problem: str


@dataclass(slots=True)
class Samples:
    """Everything that was measured. Gaps between tokens are of answers due at `gap_due_at`.

    cpu_s: what the client used; starved_s: how long it could have run and had no core. counters:
    those of each replica by its URL, before the run and after it.
    """

    began_at: float = 0.0
    ended_at: float = 0.0
    cpu_s: float = 0.0
    starved_s: float = 0.0
    interrupted: bool = False
    planned: list[float] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    openings: list[Opening] = field(default_factory=list)
    reconnects: int = 0
    gaps: array[float] = field(default_factory=lambda: array("d"))
    gap_due_at: array[float] = field(default_factory=lambda: array("d"))
    seen: list[Seen] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    happened: list[Happened] = field(default_factory=list)
    counters: tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]] = ({}, {})

    def add_gaps(self, due_at: float, gaps: list[float]) -> None:
        self.gaps.extend(gaps)
        self.gap_due_at.extend([due_at] * len(gaps))
