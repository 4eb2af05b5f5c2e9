"""From samples to figures: what counts as latency, and when a run is not valid."""

from __future__ import annotations

import pytest
from load_samples import BEGAN, SCENARIO, many, record, result, samples

from loadtest.record import LEFT, UNFINISHED, Opening
from loadtest.result import Metric, Result
from loadtest.summary import summarize


def metric(found: Result, name: str) -> Metric:
    made = found.metric(name)
    assert made is not None
    return made


def p(found: Result, name: str, quantile: float = 0.5) -> float | None:
    return next(e.value for e in metric(found, name).percentiles if e.quantile == quantile)


def test_the_formulas() -> None:
    found = result(many())
    assert found.verdict.valid
    assert found.counts.ok == 1000
    assert found.counts.warm_up == 100
    assert p(found, "ttft") == pytest.approx(50)
    assert p(found, "ttft from send") == pytest.approx(48)
    assert p(found, "e2e") == pytest.approx(95)
    assert p(found, "tpot") == pytest.approx(10)
    assert p(found, "greatest gap") == pytest.approx(12)
    assert p(found, "send lag") == pytest.approx(1)
    assert found.rates["sessions_per_s"] == pytest.approx(100)
    assert found.rates["output_tokens_per_s"] == pytest.approx(500)
    assert found.rates["cached_share"] == pytest.approx(0.5)
    assert found.about == {"k": "v"}


def test_a_delay_before_the_send_is_part_of_the_latency() -> None:
    """A client that came late says so, and says how long the user would have waited."""
    late = ("started_at", "sent_at", "first_at", "last_at", "ended_at")
    records = [
        record(n, n / 100, **dict.fromkeys(late, BEGAN + n / 100 + 3.0)) for n in range(1100)
    ]
    found = result(records)
    assert p(found, "ttft") == pytest.approx(3000)
    assert p(found, "ttft from send") == pytest.approx(0)
    assert not found.verdict.valid
    assert "p99 send lag 3000.0 ms is above 150.0 ms" in found.verdict.reasons


def test_what_is_no_whole_answer_is_counted_apart() -> None:
    others = [
        record(1, 2, outcome=LEFT),
        record(2, 2, outcome=UNFINISHED),
        record(3, 2, outcome="truncated", first_at=0, last_at=0, detail="why"),
        record(4, 2, outcome="http_429", status=429, first_at=0, last_at=0),
        record(5, 2, slow=True, first_at=BEGAN + 100, last_at=BEGAN + 200),
    ]
    found = result(many() + others)
    counts = found.counts
    assert (counts.ok, counts.left, counts.unfinished, counts.failed, counts.slow) == (
        *(1000, 1, 1, 2),
        1,
    )
    assert counts.errors == {"http_429": 1, "truncated": 1}
    assert counts.examples == {"truncated": "why"}
    assert counts.statuses == {"200": 1004, "429": 1}
    assert metric(found, "ttft").count == len(found.rows.ttft_ms) == 1000
    assert metric(found, "ttft").greatest == pytest.approx(50)


def test_few_answers_have_no_p99() -> None:
    found = result(many()[:599])
    assert p(found, "ttft", 0.95) is not None
    assert p(found, "ttft", 0.99) is None
    assert "no p99: 499 answers, 500 are needed" in found.verdict.notes
    assert p(result(many()[:600]), "ttft", 0.99) == pytest.approx(50)


def test_an_interval_holds_its_percentile() -> None:
    records = [record(n, n / 100, first_at=BEGAN + n / 100 + n % 97 / 1e3) for n in range(1100)]
    found = result(records)
    for each in metric(found, "ttft").percentiles[:4]:
        assert each.value is not None
        assert each.low is not None
        assert each.high is not None
        assert each.low <= each.value <= each.high


def test_no_answer_is_not_valid() -> None:
    assert result([]).verdict.reasons == ["no answer was measured"]


def test_the_lag_of_few_requests_is_not_excused() -> None:
    records = [record(n, 2 + n / 10) for n in range(20)]
    records[7].started_at = records[7].due_at + 0.03
    assert result(records).verdict.reasons == ["greatest send lag 30.0 ms is above 5.0 ms"]


def test_too_few_that_began_in_time_is_not_valid() -> None:
    records = many()
    for late in records[-30:]:
        late.started_at = BEGAN + 11.01
    found = result(records)
    assert "only 97.0% of the requests began in time, 98% must" in found.verdict.reasons


def test_a_busy_client_is_not_valid() -> None:
    assert result(many(), cpu_s=8.8).verdict.valid
    assert result(many(), cpu_s=9.99).verdict.reasons == [
        "the client used 90% of a core and waited 0% of the time for one, 80% may be at most"
    ]


def test_a_client_without_a_core_is_not_valid() -> None:
    assert result(many(), starved_s=6.8).verdict.valid
    assert result(many(), starved_s=7.77).verdict.reasons == [
        "the client used 18% of a core and waited 70% of the time for one, 80% may be at most"
    ]


def test_an_interrupted_run_is_judged_by_what_it_did() -> None:
    records = [each for each in many() if each.due_at < BEGAN + 6]
    planned = [each.due_at for each in many()]
    found = result(records, planned=planned, ended_at=BEGAN + 6, interrupted=True)
    assert found.verdict.valid
    assert found.interrupted
    assert found.measured_s == pytest.approx(5)
    assert found.counts.planned == found.counts.started == 500
    assert found.rates["sessions_per_s"] == pytest.approx(100)


def test_interrupted_in_the_warm_up() -> None:
    found = result(many()[:50], ended_at=BEGAN + 0.5, interrupted=True)
    assert found.measured_s == 0
    assert not found.verdict.valid


def test_kinds_have_their_own_figures() -> None:
    records = many()
    for each in records[::2]:
        each.kind = "b"
    found = result(records)
    assert {kind: made[0].count for kind, made in found.by_kind.items()} == {"a": 500, "b": 500}
    assert result(many()).by_kind == {}


def test_gaps_are_pooled_without_the_warm_up() -> None:
    whole = samples(many())
    whole.add_gaps(BEGAN + 0.5, [9.0])
    whole.add_gaps(BEGAN + 2, [0.010, 0.020])
    found = summarize(SCENARIO, 1, whole, {})
    assert metric(found, "itl").count == sum(found.gaps.counts) == 2
    assert metric(found, "itl").greatest == pytest.approx(20)


def test_connections() -> None:
    openings = [
        Opening(BEGAN + 0.5, 9.0, 9.0, False),
        Opening(BEGAN + 2, 0.001, 0.004, False),
        Opening(BEGAN + 3, 0.001, 0.002, True),
    ]
    found = result(many(), openings=openings)
    assert (found.counts.connections, found.counts.resumed) == (2, 1)
    assert metric(found, "tls").greatest == pytest.approx(4)
    assert metric(found, "connect").greatest == pytest.approx(1)


def test_seconds() -> None:
    found = result([*many(), record(1, 4.5, outcome="reset", first_at=0)])
    assert [second.due for second in found.seconds] == [100] * 4 + [101] + [100] * 6 + [0]
    assert [second.failed for second in found.seconds] == [0] * 4 + [1] + [0] * 7
    assert found.seconds[3].ttft_p50_ms == pytest.approx(50)
    assert sum(second.tokens for second in found.seconds) == 1101 * 5
