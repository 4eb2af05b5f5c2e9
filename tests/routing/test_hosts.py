"""Gateways that tell each other what they gave to replicas."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from routing.hosts import (
    EXPIRE_S,
    MOST_BYTES,
    MOST_HOSTS,
    MOST_ROWS,
    NOTHING,
    SNAPSHOT_S,
    Kind,
    Listener,
    Message,
    Row,
    Teller,
    decode,
    encode,
    replica_key,
)

A, B = replica_key("a"), replica_key("b")


def listener(own: int = 9, known: tuple[int, ...] = (A, B)) -> Listener:
    made = Listener(own)
    made.use(known)
    return made


def message(
    kind: Kind = Kind.CHANGES,
    host: int = 1,
    life: int = 0,
    number: int = 1,
    rows: tuple[tuple[int, Row], ...] = (),
) -> bytes:
    return encode(Message(kind, host, life, number, rows))


def test_first_all_is_told_and_then_what_changes() -> None:
    teller, heard = Teller(1, 0), listener()
    first = teller.next({A: (5, 1, 9), B: NOTHING}, 0.0)
    assert first is not None
    assert decode(first) == Message(Kind.SNAPSHOT, 1, 0, 1, [(A, (5, 1, 9))])
    assert teller.next({A: (5, 1, 9), B: NOTHING}, 0.1) is None
    second = teller.next({A: NOTHING, B: (7, 1, 7)}, 0.2)
    assert second is not None
    assert heard.hear(first, 0.0)
    assert heard.hear(second, 0.2)
    assert (heard.total(A), heard.total(B)) == (NOTHING, (7, 1, 7))
    assert heard.take_changed() == {A, B}
    assert heard.take_changed() == set()


def test_a_snapshot_comes_each_second_though_nothing_changes() -> None:
    teller = Teller(1, 0)
    assert teller.next({}, 0.0) is not None
    assert teller.next({}, SNAPSHOT_S - 0.01) is None
    assert teller.next({}, SNAPSHOT_S) is not None


def test_after_a_failure_all_is_told() -> None:
    teller = Teller(1, 0)
    teller.next({A: (1, 1, 1)}, 0.0)
    teller.failed()
    again = teller.next({A: (1, 1, 1)}, 0.01)
    assert again is not None
    assert decode(again).kind is Kind.SNAPSHOT


def test_a_lost_message_is_mended_by_the_next_snapshot() -> None:
    teller, heard = Teller(1, 0), listener()
    heard.hear(teller.next({A: (5, 1, 5)}, 0.0) or b"", 0.0)
    teller.next({A: NOTHING}, 0.1)  # lost
    assert heard.total(A) == (5, 1, 5)
    heard.hear(teller.next({A: NOTHING}, 1.0) or b"", 1.0)
    assert heard.total(A) == NOTHING


def test_several_gateways_add_up() -> None:
    heard = listener()
    heard.hear(message(host=1, rows=((A, (5, 1, 6)),)), 0.0)
    heard.hear(message(host=2, rows=((A, (7, 2, 8)),)), 0.0)
    assert heard.total(A) == (12, 3, 14)
    assert len(heard) == 2


def test_who_is_silent_counts_for_nothing() -> None:
    heard = listener()
    heard.hear(message(rows=((A, (5, 1, 6)),)), 10.0)
    heard.expire(10.0 + EXPIRE_S)
    assert heard.total(A) == (5, 1, 6)
    heard.expire(10.01 + EXPIRE_S)
    assert heard.total(A) == NOTHING
    assert len(heard) == 0
    assert heard.take_changed() == {A}


def test_who_leaves_counts_for_nothing_at_once() -> None:
    teller, heard = Teller(1, 0), listener()
    heard.hear(teller.next({A: (5, 1, 6)}, 0.0) or b"", 0.0)
    assert heard.hear(teller.farewell(), 0.1)
    assert (heard.total(A), len(heard)) == (NOTHING, 0)
    assert not heard.hear(message(Kind.LEAVING, host=77), 0.1)
    assert len(heard) == 0


def test_own_and_old_messages_are_ignored() -> None:
    heard = listener(own=1)
    assert not heard.hear(message(host=1, rows=((A, (5, 1, 6)),)), 0.0)
    assert heard.hear(message(host=2, number=5, rows=((A, (5, 1, 6)),)), 0.0)
    for number in (5, 4):
        assert not heard.hear(message(host=2, number=number, rows=((A, (50, 1, 6)),)), 0.0)
    assert heard.total(A) == (5, 1, 6)


def test_a_gateway_in_its_next_life_begins_anew() -> None:
    heard = listener()
    heard.hear(message(life=1, number=9, rows=((A, (5, 1, 6)),)), 0.0)
    assert heard.hear(message(life=2, number=1, rows=((B, (7, 1, 7)),)), 0.0)
    assert (heard.total(A), heard.total(B)) == (NOTHING, (7, 1, 7))
    assert not heard.hear(message(life=1, number=10, rows=((A, (5, 1, 6)),)), 0.0)


def test_replicas_that_are_not_ours_are_not_remembered() -> None:
    heard = listener(known=(A,))
    heard.hear(message(rows=((A, (1, 1, 1)), (B, (2, 1, 2)))), 0.0)
    assert heard.total(B) == NOTHING
    heard.take_changed()
    heard.use((B,))
    assert heard.total(A) == NOTHING
    assert heard.take_changed() == {A}


def test_there_is_a_bound_of_gateways() -> None:
    heard = listener()
    for host in range(10, 10 + MOST_HOSTS):
        heard.hear(message(host=host), 0.0)
    with pytest.raises(ValueError, match="gateways"):
        heard.hear(message(host=5), 0.0)
    heard.expire(EXPIRE_S + 1)
    assert heard.hear(message(host=5), EXPIRE_S + 1)


def test_a_gateway_with_too_many_replicas_stays_within_the_bound() -> None:
    rows = dict.fromkeys(range(MOST_ROWS + 10), (1, 1, 1))
    said = Teller(1, 0).next(rows, 0.0)
    assert said is not None
    assert len(said) == MOST_BYTES
    assert len(decode(said).rows) == MOST_ROWS


GARBAGE = {
    "empty": b"",
    "short": b"HRHL",
    "text": b"*3\r\n$9\r\nsubscribe\r\n" * 4,
    "another version": message().replace(b"HRHL\x01", b"HRHL\x02"),
    "an unknown kind": struct.pack("<4sHHQQQ", b"HRHL", 1, 9, 1, 0, 1),
    "half a row": message(rows=((A, (1, 1, 1)),))[:-1],
    "too long": message() + bytes(MOST_BYTES),
    "too many tokens": message(rows=((A, (1 << 41, 1, 1)),)),
    "too many requests": message(rows=((A, (1, 1 << 25, 1)),)),
    "negative": message(rows=((A, (1, 1, (1 << 64) - 5)),)),
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_raises_and_changes_nothing(data: bytes) -> None:
    heard = listener()
    heard.hear(message(rows=((A, (5, 1, 6)),)), 0.0)
    with pytest.raises(ValueError, match=r".+"):
        heard.hear(data, 0.0)
    assert heard.total(A) == (5, 1, 6)


@given(st.binary(max_size=200))
@settings(max_examples=100)
@example(b"HRHL\x01\x00\x00\x00" + bytes(24) + b"\xff" * 32)
def test_any_bytes_are_a_message_or_a_value_error(data: bytes) -> None:
    try:
        found = decode(data)
    except ValueError:
        return
    assert encode(found) == data


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3),
            st.sampled_from(Kind),
            st.dictionaries(st.sampled_from([A, B]), st.tuples(*[st.integers(0, 9)] * 3)),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_totals_are_those_of_who_is_there(
    history: list[tuple[int, Kind, dict[int, Row], bool]],
) -> None:
    heard, now = listener(), 0.0
    rows: dict[int, dict[int, Row]] = {}
    at: dict[int, float] = {}
    for number, (host, kind, said, pause) in enumerate(history, 1):
        heard.hear(message(kind, host, 0, number, tuple(said.items())), now)
        if kind is Kind.LEAVING:
            rows.pop(host, None)
        else:
            before = rows.get(host, {}) if kind is Kind.CHANGES else {}
            rows[host], at[host] = before | said, now
        if pause:
            now += 2.0
            heard.expire(now)
            rows = {each: held for each, held in rows.items() if now - at[each] <= EXPIRE_S}
    for key in (A, B):
        held = [each.get(key, NOTHING) for each in rows.values()]
        assert heard.total(key) == tuple(map(sum, zip(NOTHING, *held, strict=True)))
