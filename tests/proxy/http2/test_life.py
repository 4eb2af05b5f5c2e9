from __future__ import annotations

from proxy.config import ListenTimeouts
from proxy.flow import NEVER
from proxy.http2.life import (
    LONGEST_S,
    MOST_STREAMS,
    NOTICE_S,
    PING_AFTER_S,
    PING_WAIT_S,
    Life,
    Step,
)

TIMEOUTS = ListenTimeouts(head_s=10.0, keep_alive_s=75.0)


def life(*, settled: bool = True, spread: float = 0.0) -> Life:
    one = Life(TIMEOUTS, 100.0, spread)
    if settled:
        one.settings(100.0)
        one.settings_answered()
    return one


def test_a_client_must_get_going() -> None:
    one = life(settled=False)
    assert one.next_at() == 110.0
    assert one.due(109.9) is None
    assert one.due(110.0) is Step.GIVE_UP
    one.settings(101.0)
    assert one.due(110.0) is Step.GIVE_UP, "our settings are not acknowledged"
    one.settings_answered()
    assert one.due(110.0) is None


def test_an_idle_connection_retires() -> None:
    one = life()
    assert one.next_at() == 175.0
    one.settings(150.0)
    assert one.due(175.0) is Step.NOTICE, "later settings put nothing off"
    one.began(160.0)
    assert one.due(175.0) is None
    one.idle(180.0)
    assert (one.due(254.9), one.due(255.0)) == (None, Step.NOTICE)


def test_a_retiring_connection_ends_after_a_moment() -> None:
    one = life()
    one.noticed(120.0)
    assert one.retiring
    assert one.next_at() == 120.0 + NOTICE_S
    assert one.due(121.0) is None
    assert one.due(120.0 + NOTICE_S) is Step.LAST
    one.finished = True
    assert one.due(1000.0) is None
    assert one.next_at() == NEVER


def test_silence_is_asked_about_while_streams_are_open() -> None:
    one = life()
    one.began(110.0)
    assert one.due(110.0 + PING_AFTER_S) is Step.PING
    one.pinged(140.0)
    assert one.due(140.0) is None
    assert one.next_at() == 140.0 + PING_WAIT_S
    assert one.due(140.0 + PING_WAIT_S) is Step.DEAD
    one.heard(150.0)
    assert one.due(140.0 + PING_WAIT_S) is None
    one.idle(151.0)
    assert one.due(151.0 + 74.0) is None


def test_silence_is_asked_about_while_the_last_streams_end() -> None:
    one = life()
    one.began(110.0)
    one.noticed(111.0)
    one.finished = True
    assert one.due(110.0 + PING_AFTER_S) is Step.PING


def test_old_connections_retire_at_different_times() -> None:
    for spread in (0.0, 0.5, 1.0):
        one = life(spread=spread)
        one.began(110.0)
        old_at = 100.0 + LONGEST_S * (1.0 - 0.2 * spread)
        one.heard(old_at - 1.0)
        assert one.due(old_at - 0.1) is None
        assert one.due(old_at + 0.1) is Step.NOTICE


def test_a_connection_has_had_enough_streams() -> None:
    one = life()
    for _ in range(MOST_STREAMS - 1):
        one.began(110.0)
    assert not one.wanted
    one.began(110.0)
    assert one.wanted
    assert one.may_retire
    one.noticed(110.0)
    assert not one.may_retire


def test_a_fragile_client_is_told_when_it_has_no_streams() -> None:
    one = life()
    one.fragile = True
    one.began(110.0)
    one.wanted = True
    assert not one.may_retire
    one.heard(10_000.0)
    assert one.due(10_000.0) is None
    one.idle(10_001.0)
    assert one.may_retire
