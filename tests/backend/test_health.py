from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.config import HealthConfig
from backend.health import (
    TRIAL_S,
    Cause,
    Circuit,
    Fault,
    ModelHealth,
    Probe,
    ReplicaHealth,
    classify,
)
from core.errors import (
    BadRequest,
    ClientGone,
    GatewayError,
    RateLimited,
    UpstreamAnswered,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamReset,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from core.replica import Replica

CONFIG = HealthConfig()


def member(name: str = "a") -> ReplicaHealth:
    return ReplicaHealth(Replica(name, "m"), CONFIG)


def model(count: int) -> ModelHealth:
    return ModelHealth([member(str(n)) for n in range(count)], CONFIG)


def names(group: ModelHealth, now: float) -> list[str]:
    group.review()
    return [replica.id for replica in group.candidates(now)]


def fail(health: ReplicaHealth, now: float, times: int = CONFIG.failures) -> None:
    for _ in range(times):
        health.failed(Fault.FAILURE, now)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (BadRequest("x"), None),
        (RateLimited("x"), None),
        (ClientGone("x"), None),
        (UpstreamReset("x", reused=True, answered=False), None),
        (UpstreamReset("x", reused=True, answered=True), Fault.FAILURE),
        (UpstreamReset("x", reused=False, answered=False), Fault.FAILURE),
        (UpstreamTimeout("x", phase="first_token"), Fault.FAILURE),
        (UpstreamProtocolError("x"), Fault.FAILURE),
        (UpstreamError("x"), Fault.FAILURE),
        (UpstreamAnswered("x", status=503), Fault.FAILURE),
        (UpstreamAnswered("x", status=400), None),
        (UpstreamAnswered("x", status=429), None),
        (UpstreamUnreachable("x"), Fault.FAILURE),
        (UpstreamUnreachable("x", code="no"), Fault.REFUSED),
    ],
)
def test_only_the_replicas_own_failures_count(error: GatewayError, fault: Fault | None) -> None:
    assert classify(error, "no") is fault


class TestCircuit:
    def test_opens_after_failures_in_a_row(self) -> None:
        health = member()
        fail(health, 0.0, CONFIG.failures - 1)
        health.succeeded(0.0)
        fail(health, 0.0, CONFIG.failures - 1)
        assert health.circuit is Circuit.CLOSED
        fail(health, 0.0, 1)
        assert health.circuit is Circuit.OPEN
        assert not health.certain

    def test_opens_when_every_second_exchange_fails(self) -> None:
        health = member()
        for _ in range(5):
            health.succeeded(0.0)
            assert health.circuit is Circuit.CLOSED, "fewer than ten say nothing"
            health.failed(Fault.FAILURE, 0.0)
        assert (health.circuit, health.cause) == (Circuit.OPEN, Cause.RATIO)
        assert not health.certain

    @pytest.mark.parametrize(
        ("pattern", "apart_s"),
        [
            ("oof", 0.0),  # a third
            ("of", 1.2),  # too few in ten seconds
        ],
    )
    def test_stays_closed_when_fewer_fail_or_too_few_are_known(
        self, pattern: str, apart_s: float
    ) -> None:
        health, now = member(), 0.0
        for outcome in pattern * 30:
            now += apart_s
            if outcome == "o":
                health.succeeded(now)
            else:
                health.failed(Fault.FAILURE, now)
            assert health.circuit is Circuit.CLOSED

    def test_the_share_is_of_the_latest_twenty(self) -> None:
        health = member()
        for _ in range(1000):
            health.succeeded(0.0)
        for _ in range(9):
            health.failed(Fault.FAILURE, 0.0)
            health.succeeded(0.0)
        assert health.circuit is Circuit.CLOSED
        health.failed(Fault.FAILURE, 0.0)
        health.failed(Fault.FAILURE, 0.0)
        assert health.cause is Cause.RATIO

    def test_one_that_joins_others_waits_for_a_probe(self) -> None:
        health = member()
        health.await_proof(0.0)
        assert not health.admits(CONFIG.backoff_s + 1)
        health.probed(Probe.BAD, 2.0, flowing=False)
        health.probed(Probe.SLOW, 4.0, flowing=False)
        assert (health.circuit, health.cause) == (Circuit.OPEN, Cause.UNPROVEN)
        health.probed(Probe.GOOD, 6.0, flowing=False)
        assert health.admits(6.0)

    def test_it_is_tried_at_last_without_a_good_probe(self) -> None:
        health = member()
        health.await_proof(0.0)
        assert health.admits(CONFIG.max_backoff_s)
        assert not health.admits(CONFIG.max_backoff_s)
        health.succeeded(CONFIG.max_backoff_s)
        assert health.circuit is Circuit.CLOSED

    def test_what_began_before_it_opened_does_not_close_it(self) -> None:
        health = member()
        fail(health, 0.0)
        health.succeeded(CONFIG.backoff_s - 0.01)
        assert health.circuit is Circuit.OPEN
        health.succeeded(CONFIG.backoff_s)
        assert health.circuit is Circuit.CLOSED

    def test_once_closed_it_begins_to_count_anew(self) -> None:
        health = member()
        for _ in range(5):
            health.succeeded(0.0)
            health.failed(Fault.FAILURE, 0.0)
        health.succeeded(CONFIG.backoff_s)
        health.failed(Fault.FAILURE, CONFIG.backoff_s)
        assert health.circuit is Circuit.CLOSED

    def test_refused_opens_at_once_and_a_good_probe_closes(self) -> None:
        health = member()
        health.failed(Fault.REFUSED, 0.0)
        assert (health.circuit, health.certain) == (Circuit.OPEN, True)
        health.probed(Probe.GOOD, 0.1, flowing=False)
        assert (health.circuit, health.certain) == (Circuit.CLOSED, False)

    def test_half_open_offers_one_trial_at_a_time(self) -> None:
        health = member()
        fail(health, 0.0)
        assert not health.admits(CONFIG.backoff_s - 0.01)
        assert health.admits(CONFIG.backoff_s)
        assert health.circuit is Circuit.HALF_OPEN
        assert not health.admits(CONFIG.backoff_s + TRIAL_S / 2)
        assert health.admits(CONFIG.backoff_s + TRIAL_S)
        health.succeeded(2.0)
        assert health.circuit is Circuit.CLOSED

    def test_back_off_doubles_up_to_its_limit(self) -> None:
        health, now, waits = member(), 0.0, []
        fail(health, now)
        for _ in range(8):
            opened = now
            while not health.admits(now):
                now += 0.25
            waits.append(now - opened)
            health.failed(Fault.FAILURE, now)
        assert waits == [1, 2, 4, 8, 16, 30, 30, 30]

    def test_failures_of_requests_under_way_do_not_lengthen_it(self) -> None:
        health = member()
        fail(health, 0.0, 50)
        assert health.admits(CONFIG.backoff_s)

    def test_a_good_probe_does_not_prove_that_exchanges_work(self) -> None:
        health = member()
        fail(health, 0.0)
        health.probed(Probe.GOOD, 0.5, flowing=False)
        assert health.circuit is Circuit.OPEN
        health.probed(Probe.GOOD, 1.5, flowing=False)
        assert health.circuit is Circuit.HALF_OPEN


class TestProbes:
    def test_slow_answers_while_streams_flow_change_nothing(self) -> None:
        health = member()
        for now in range(100):
            health.probed(Probe.SLOW, float(now), flowing=True)
        assert health.circuit is Circuit.CLOSED

    def test_slow_answers_just_after_a_success_change_nothing(self) -> None:
        health = member()
        for now in range(100):
            health.succeeded(float(now))
            health.probed(Probe.SLOW, now + 1.0, flowing=False)
        assert health.circuit is Circuit.CLOSED

    def test_slow_answers_of_a_silent_replica_are_a_suspicion(self) -> None:
        health = member()
        for _ in range(CONFIG.unhealthy_after):
            health.probed(Probe.SLOW, 100.0, flowing=False)
        assert (health.circuit, health.certain) == (Circuit.OPEN, False)

    def test_bad_answers_are_certain_even_while_streams_flow(self) -> None:
        health = member()
        health.probed(Probe.BAD, 0.0, flowing=True)
        assert health.circuit is Circuit.CLOSED
        health.probed(Probe.BAD, 0.0, flowing=True)
        assert (health.circuit, health.certain) == (Circuit.OPEN, True)

    def test_a_good_answer_between_bad_ones(self) -> None:
        health = member()
        for probe in (Probe.BAD, Probe.GOOD) * 20:
            health.probed(probe, 0.0, flowing=False)
        assert health.circuit is Circuit.CLOSED

    def test_an_open_circuit_is_probed_as_it_ends(self) -> None:
        health = member()
        assert health.due(0.0) == CONFIG.interval_s
        health.failed(Fault.REFUSED, 10.0)
        assert health.due(10.2) == pytest.approx(0.8)


class TestModel:
    def test_the_usual_case_is_the_same_object(self) -> None:
        group = model(3)
        assert group.candidates(0.0) is group.candidates(1.0)

    def test_suspicion_takes_out_half_at_most(self) -> None:
        group = model(5)
        for number, health in enumerate(group.members):
            fail(health, number / 10)
        assert names(group, 0.5) == ["2", "3", "4"], "the first two to open are out"

    def test_suspicion_never_takes_the_last(self) -> None:
        group = model(1)
        fail(group.members[0], 0.0)
        assert names(group, 0.0) == ["0"]
        group = model(4)
        for health in group.members[:3]:
            health.failed(Fault.REFUSED, 0.0)
        fail(group.members[3], 0.0)
        assert names(group, 0.0) == ["3"]

    def test_certainty_takes_all(self) -> None:
        group = model(2)
        for health in group.members:
            health.failed(Fault.REFUSED, 0.0)
        assert names(group, 0.0) == []
        assert not group.usable()

    def test_order_is_that_of_the_configuration(self) -> None:
        group = model(6)
        fail(group.members[2], 0.0)
        assert names(group, 0.0) == ["0", "1", "3", "4", "5"]

    def test_a_down_model_stays_unusable_while_it_is_only_tried(self) -> None:
        group = model(1)
        group.members[0].failed(Fault.REFUSED, 0.0)
        assert names(group, 5.0) == ["0"]
        assert not group.usable()

    @given(
        st.integers(1, 6),
        st.lists(
            st.tuples(
                st.integers(0, 5),
                st.sampled_from(["ok", "fail", "slow", "flow", "good", "look"]),
                st.floats(0, 2),
            ),
            max_size=80,
        ),
    )
    def test_suspicions_never_empty_a_model(
        self, count: int, steps: list[tuple[int, str, float]]
    ) -> None:
        group, now = model(count), 0.0
        for index, step, wait in steps:
            now += wait
            health = group.members[index % count]
            if step == "ok":
                health.succeeded(now)
            elif step == "fail":
                fail(health, now, 3)
            elif step in ("slow", "flow"):
                health.probed(Probe.SLOW, now, flowing=step == "flow")
            elif step == "good":
                health.probed(Probe.GOOD, now, flowing=False)
            assert len(names(group, now)) >= count - count // 2
            assert group.usable()
