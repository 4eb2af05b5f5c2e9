"""The trial of a ring before it is used: it passes here, and finds rings that do not work."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from authority import Authority

from proxy.tls.ticket_keys import TicketKey
from proxy.tls.ticket_ring import OpenSsl, Unreachable
from proxy.tls.ticket_trial import try_ring


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def test_the_trial_passes_here(authority: Authority) -> None:
    try_ring(OpenSsl(), authority.issue("a.example").config())


@pytest.mark.parametrize("fault", ["never resumes", "resumes for ever", "rotates badly"])
def test_the_trial_finds_what_does_not_work(
    authority: Authority, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = TicketKey.from_bytes(bytes(80))

    class Faulty:
        def __init__(self, secret: bytes) -> None:
            pass

        def period_at(self, now: float) -> int:
            return int(now)

        def ring(self, period: int, policy: bytes) -> Sequence[TicketKey]:
            if fault == "never resumes":
                return []
            return [key if fault == "resumes for ever" else key._replace(name=b"%016d" % period)]

    monkeypatch.setattr("proxy.tls.ticket_trial.DerivedKeys", Faulty)
    with pytest.raises(Unreachable, match="tickets resume when they should not, or do not"):
        try_ring(OpenSsl(), authority.issue("a.example").config())
