"""Where sessions were sent last."""

from __future__ import annotations

from core.claim import Claim
from routing.sessions import Sessions


def claim(session: str, tenant: str = "t") -> Claim:
    return Claim(tenant, session=session)


def test_the_last_replica_of_each_tenants_session() -> None:
    sessions = Sessions(10)
    sessions.note(claim("s"), "r0")
    sessions.note(claim("s"), "r1")
    assert sessions.last(claim("s")) == "r1"
    assert sessions.last(claim("s", "other")) is None
    assert sessions.last(claim("\ud800")) is None


def test_without_a_session_nothing_is_kept() -> None:
    sessions = Sessions(10)
    sessions.note(claim(""), "r0")
    assert len(sessions) == 0
    assert sessions.last(claim("")) is None


def test_the_least_recently_used_go() -> None:
    sessions = Sessions(2)
    for name in ("a", "b", "a", "c"):
        sessions.note(claim(name), "r")
    assert [sessions.last(claim(name)) for name in "abc"] == ["r", None, "r"]
