"""Exemplars: traces of single exchanges, beside the histograms that they were observed in. Pure.

They are made of the latest exchanges of all workers (`proxy/recent.py`), so they cost nothing until
somebody asks, and outlive a worker.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from prometheus_client.samples import Exemplar

from core.metric_rows import Labels

Exemplars = Mapping[tuple[str, Labels], Sequence[Exemplar]]
"""By the name of a histogram and the label values of a series; the newest first."""

_OBSERVED = {
    "headrace_time_to_first_token_seconds": "ttft_ms",
    "headrace_request_duration_seconds": "total_ms",
}


def exemplars_of(records: Iterable[Mapping[str, Any]]) -> Exemplars:
    """Of `records`, the newest first, those that were traced."""
    found: dict[tuple[str, Labels], list[Exemplar]] = {}
    for record in records:
        trace_id, model, time = record.get("trace_id"), record.get("model"), record.get("time")
        if trace_id is None or model is None or time is None:
            continue
        at = datetime.fromisoformat(time).timestamp()
        for name, field in _OBSERVED.items():
            if field in record:
                exemplar = Exemplar({"trace_id": trace_id}, record[field] / 1e3, at)
                found.setdefault((name, (model,)), []).append(exemplar)
    return found


def by_bucket(bounds: Sequence[float], exemplars: Sequence[Exemplar]) -> Mapping[int, Exemplar]:
    """For each bucket the newest one that was counted there."""
    return {bisect_left(bounds, exemplar.value): exemplar for exemplar in reversed(exemplars)}
