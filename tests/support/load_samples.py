"""Samples of a load test as a run would have left them: 100 requests a second for 11 s."""

from __future__ import annotations

from typing import Any

from loadtest.record import OK, Record, Samples
from loadtest.result import Result
from loadtest.scenario import Constant, Requests, Scenario
from loadtest.summary import summarize

SCENARIO = Scenario(
    name="t",
    arrivals=Constant(rate=100),
    requests=[Requests(name="a", prompt=1, output=1), Requests(name="b", prompt=1, output=1)],
    warm_up_s=1,
    duration_s=10,
)
BEGAN = 1000.0


def record(number: int, due_s: float, **changes: Any) -> Record:
    """Started 1 ms late, sent 2 ms after it was due; first content after 50 ms, 5 tokens 10 ms
    apart."""
    due = BEGAN + due_s
    values: dict[str, Any] = {
        "started_at": due + 0.001,
        "sent_at": due + 0.002,
        "first_at": due + 0.050,
        "last_at": due + 0.090,
        "ended_at": due + 0.095,
        "outcome": OK,
        "status": 200,
        "pieces": 5,
        "gap_max": 0.012,
        "prompt_tokens": 10,
        "cached_tokens": 5,
        "output_tokens": 5,
    }
    return Record(number, 0, "a", due, **{**values, **changes})


def samples(records: list[Record], **changes: Any) -> Samples:
    values: dict[str, Any] = {
        "began_at": BEGAN,
        "ended_at": BEGAN + 11.1,
        "cpu_s": 2.0,
        "planned": [each.due_at for each in records],
    }
    return Samples(**{**values, **changes}, records=records)


def result(records: list[Record], **changes: Any) -> Result:
    return summarize(SCENARIO, 1, samples(records, **changes), {"k": "v"})


def many(**changes: Any) -> list[Record]:
    return [record(n, n / 100, **changes) for n in range(1100)]
