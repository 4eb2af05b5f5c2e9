"""The phases of an exchange: their names, their header, and that they leave no gap."""

from __future__ import annotations

from proxy.access_log import AccessRecord
from proxy.phases import OWN, PHASES, server_timing


def test_each_phase_has_a_field_in_the_log() -> None:
    assert {phase + "_ms" for phase in PHASES} <= set(AccessRecord.__struct_fields__)
    assert set(OWN) < set(PHASES)


def test_phases_follow_each_other_without_a_gap() -> None:
    record = AccessRecord(request_id="r", phase="gate", trail=[("head", 0.75), ("gate", 1.0)])
    record.enter("route", 1.5)
    record.enter("connect", 2.0)
    record.enter("route", 2.25)  # a retry
    record.enter("connect", 3.0)
    assert record.phase == "connect"
    record.leave(4.0)
    spent = record.word_phases()
    assert spent == {"head": 0.25, "gate": 0.5, "route": 1.25, "connect": 1.25}
    assert (record.head_ms, record.gate_ms, record.route_ms) == (250.0, 500.0, 1250.0)
    assert (record.connect_ms, record.auth_ms) == (1250.0, None)


def test_a_record_that_never_ran_has_no_phases() -> None:
    record = AccessRecord(request_id="r")
    record.leave(1.0)
    assert record.word_phases() == {}


def test_server_timing_is_in_milliseconds() -> None:
    spent = {"auth": 0.0001, "route": 0.01, "queue": 0.0, "relay": 0.009994}
    worded = b"auth;dur=0.10, route;dur=10.00, queue;dur=0.00, relay;dur=9.99"
    assert server_timing(spent) == worded
    assert server_timing({**spent, "first_token": 20.0}) == worded + b", first_token;dur=20000.00"


def test_server_timing_says_which_handshake_there_was() -> None:
    spent = {"tls": 0.0015, "head": 0.0001}
    assert server_timing(spent, True) == b"tls;desc=resumed;dur=1.50, head;dur=0.10"
    assert server_timing(spent, False).startswith(b"tls;desc=full;dur=1.50,")
