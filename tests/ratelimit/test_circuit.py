from __future__ import annotations

from itertools import pairwise

from ratelimit.circuit import FIRST_RETRY_S, STEADY_S, Circuit


def test_opens_after_failures_in_a_row() -> None:
    circuit = Circuit(3, 2.0)
    assert [circuit.failed(), circuit.failed()] == [False, False]
    circuit.succeeded()
    assert [circuit.failed(), circuit.failed(), circuit.failed()] == [False, False, True]


def test_retries_back_off_up_to_the_bound() -> None:
    circuit = Circuit(3, 2.0)
    delays = [circuit.retry_in_s(1.0) for _ in range(40)]
    assert delays[:3] == [0.0, FIRST_RETRY_S, 2 * FIRST_RETRY_S]
    assert all(a <= b for a, b in pairwise(delays))
    assert delays[-1] == 2.0
    assert circuit.retry_in_s(0.0) == 1.0


def test_a_steady_connection_is_followed_by_an_immediate_retry() -> None:
    circuit = Circuit(3, 2.0)
    for _ in range(5):
        circuit.retry_in_s(1.0)
    circuit.closed(10.0)
    circuit.opened(10.0 + STEADY_S)
    assert circuit.retry_in_s(1.0) == 0.0


def test_a_flapping_connection_is_not() -> None:
    circuit = Circuit(3, 2.0)
    circuit.retry_in_s(1.0)
    circuit.closed(10.0)
    circuit.opened(10.1)
    assert circuit.retry_in_s(1.0) > 0.0


def test_closing_forgets_failures() -> None:
    circuit = Circuit(2, 2.0)
    circuit.failed()
    circuit.closed(1.0)
    assert not circuit.failed()
