"""The back-off between deaths of a worker."""

from __future__ import annotations

from proxy.serve.supervise.respawn import LIVED_LONG_S, Respawn


def test_the_delay_doubles_up_to_ten_seconds() -> None:
    respawn = Respawn()
    delays = []
    for _ in range(10):
        respawn.after_death(started_at=100.0, now=100.1)
        delays.append(respawn.delay_s)
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]


def test_a_long_life_is_forgiven() -> None:
    respawn = Respawn()
    for _ in range(5):
        respawn.after_death(started_at=0.0, now=1.0)
    assert respawn.after_death(started_at=10.0, now=10.0 + LIVED_LONG_S) == 40.1
    assert respawn.after_death(started_at=41.0, now=41.0 + LIVED_LONG_S - 0.5) == 70.5 + 0.2
