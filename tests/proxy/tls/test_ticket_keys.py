"""Rings of ticket keys: who opens whose tickets, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tls.ticket_keys import KEY_BYTES, OPEN, ROTATION_S, DerivedKeys, FileKeys, TicketKey

SECRET = b"a secret that all hosts have"
PERIODS = st.integers(0, 100_000)
INSTANTS = st.floats(0, 4e9)


def test_the_parts_of_a_file() -> None:
    key = TicketKey.from_bytes(b"n" * 16 + b"h" * 32 + b"a" * 32)
    assert key == (b"n" * 16, b"h" * 32, b"a" * 32)
    assert "6e6e" in repr(key)
    assert "hh" not in repr(key)


@pytest.mark.parametrize("size", [0, 48, 79, 81, 160])
def test_a_file_of_another_size(size: int) -> None:
    with pytest.raises(ValueError, match=f"has {size} bytes; a ticket key has 80"):
        TicketKey.from_bytes(bytes(size))


@given(INSTANTS, st.floats(-ROTATION_S, ROTATION_S))
def test_hosts_within_one_period_open_each_others_tickets(now: float, skew: float) -> None:
    here, there = DerivedKeys(SECRET), DerivedKeys(SECRET)
    ours = here.ring(here.period_at(now), OPEN)
    theirs = there.ring(there.period_at(now + skew), OPEN)
    assert ours[0] in theirs
    assert theirs[0] in ours


@given(PERIODS)
def test_a_key_is_staged_then_encrypts_then_opens_then_is_retired(period: int) -> None:
    keys = DerivedKeys(SECRET)
    key = keys.ring(period, OPEN)[0]
    places = [
        ring.index(key) if key in (ring := keys.ring(number, OPEN)) else None
        for number in range(period - 2, period + 3)
    ]
    assert places == [None, 2, 0, 1, None]


@given(PERIODS, st.binary(max_size=32), st.binary(max_size=32))
def test_policies_share_no_key(period: int, one: bytes, other: bytes) -> None:
    files = FileKeys([TicketKey.from_bytes(bytes([n]) * KEY_BYTES) for n in range(3)])
    for keys in (DerivedKeys(SECRET), files):
        rings = [keys.ring(period, policy) for policy in (one, other)]
        names = [{key.name for key in ring} for ring in rings]
        assert (rings[0] == rings[1]) == (one == other)
        assert bool(names[0] & names[1]) == (one == other)
        assert len(names[0]) == len({key.aes for key in rings[0]}) == 3


def test_a_rotation_is_a_fixed_time_of_the_day() -> None:
    keys = DerivedKeys(SECRET, 100.0)
    assert [keys.period_at(now) for now in (0.0, 99.9, 100.0, 250.0)] == [0, 0, 1, 2]


def test_other_secrets_and_other_periods_have_other_keys() -> None:
    rings = [
        DerivedKeys(SECRET).ring(7, OPEN),
        DerivedKeys(SECRET + b".").ring(7, OPEN),
        DerivedKeys(SECRET, 3600.0).ring(7, OPEN),
    ]
    assert len({key for ring in rings for key in ring}) == 9
    assert SECRET.decode() not in repr(DerivedKeys(SECRET))


def test_keys_from_files_are_as_given_and_never_change() -> None:
    given_keys = [TicketKey.from_bytes(bytes([n]) * KEY_BYTES) for n in range(4)]
    keys = FileKeys(given_keys)
    assert keys.ring(keys.period_at(0), OPEN) == tuple(given_keys)
    assert keys.period_at(0) == keys.period_at(4e9)


def test_the_derivation_is_pinned() -> None:
    """Hosts of two versions must agree; a change of this figure cuts them apart."""
    key = DerivedKeys(SECRET).ring(40_000, OPEN)[0]
    assert key.name.hex() == "820bb6e1cbf05dd6ffd7e10cbf3e31fd"
