"""Which traced exchanges stand beside which buckets, and that OpenMetrics alone shows them."""

from __future__ import annotations

from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Exemplar

from core.metrics import MetricsBoard
from proxy.serve.exemplars import by_bucket, exemplars_of
from proxy.serve.exposition import render

NAME = "headrace_time_to_first_token_seconds"
NOON = 1_767_268_800.0


def record(number: int, ttft_ms: float, **fields: Any) -> dict[str, Any]:
    time = f"2026-01-01T12:00:{number:02}.500000Z"
    given = {"time": time, "model": "m", "trace_id": f"{number:032x}", "ttft_ms": ttft_ms, **fields}
    return {name: value for name, value in given.items() if value is not None}


def test_only_traced_exchanges_with_a_model_are_exemplars() -> None:
    found = exemplars_of(
        [
            record(2, 40.0, total_ms=70.0),
            record(1, 5.0, trace_id=None),
            record(0, 5.0, model=None),
        ]
    )
    assert found == {
        (NAME, ("m",)): [Exemplar({"trace_id": f"{2:032x}"}, 0.04, NOON + 2.5)],
        ("headrace_request_duration_seconds", ("m",)): [
            Exemplar({"trace_id": f"{2:032x}"}, 0.07, NOON + 2.5)
        ],
    }


def test_each_bucket_has_its_newest() -> None:
    three = [Exemplar({"n": str(n)}, value) for n, value in enumerate((0.1, 0.05, 0.3))]
    assert by_bucket([0.1, 0.2], three) == {0: three[0], 2: three[2]}


def test_openmetrics_shows_them_and_the_older_format_does_not() -> None:
    board = MetricsBoard(2)
    for index, seconds in ((0, 0.04), (1, 0.4)):
        metrics = board.for_worker(index)
        metrics.histogram(NAME, "T.", [0.1, 1.0], ("model",)).labels("m").observe(seconds)
    board.fold(1)  # what a dead worker saw stays, with its exemplar
    # The last one is not in any bucket: its worker has yet to count it.
    exemplars = exemplars_of([record(2, 400.0), record(1, 40.0), record(3, 4000.0)])
    families = board.collect().values()
    assert b"trace_id" not in b"".join(render(families, False, {}))
    text = b"".join(render(families, True, exemplars)).decode()
    (family,) = [f for f in text_string_to_metric_families(text) if f.name == NAME]
    shown = {
        s.labels["le"]: (s.value, s.exemplar and (s.exemplar.value, s.exemplar.labels))
        for s in family.samples
        if s.name.endswith("_bucket")
    }
    assert shown == {
        "0.1": (1.0, (0.04, {"trace_id": f"{1:032x}"})),
        "1.0": (2.0, (0.4, {"trace_id": f"{2:032x}"})),
        "+Inf": (2.0, None),
    }
