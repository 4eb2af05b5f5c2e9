from __future__ import annotations

import pytest

from routing.announcements import MOST_BLOCKS, Announcer, Kind, Record, heading, records


def sent(announcer: Announcer) -> list[bytes]:
    found = []
    while (datagram := announcer.next()) is not None:
        assert announcer.next() is datagram
        found.append(datagram)
        announcer.sent()
    return found


def said(datagrams: list[bytes]) -> list[tuple[int, ...]]:
    return [
        (record.kind, record.place, record.number, record.word, *record.blocks)
        for datagram in datagrams
        for record in records(datagram)
    ]


def test_what_is_said_is_read_in_order() -> None:
    announcer = Announcer(7, 3)
    announcer.expect(2, [10, 11, 2**64 - 1])
    announcer.expect(2, [10, 11])
    announcer.confirm(2, [10, 11, 2**64 - 1])
    announcer.drop(2, [10, 11])
    announcer.cold(1)
    announcer.resize(5, 9000)
    announcer.corrected(0, 4, 2)
    first, second = sent(announcer)
    assert heading(first) == (7, 3, 1, True)
    assert heading(second) == (7, 3, 2, False)
    assert (heading(second).mark, heading(second).mark + 1) == (3 << 40 | 2, announcer.mark)
    assert said([first, second]) == [
        (Kind.EXPECT, 2, 3, 2**64 - 1, 10, 11, 2**64 - 1),
        (Kind.EXPECT, 2, 2, 11, 10, 11),
        (Kind.CONFIRM, 2, 3, 2**64 - 1),
        (Kind.DROP, 2, 2, 11),
        (Kind.COLD, 1, 0, 0),
        (Kind.RESIZE, 5, 0, 9000),
        (Kind.CORRECTED, 0, 4, 2),
    ]
    assert sent(announcer) == []


def test_beginning_anew_says_what_is_on_its_way_and_nothing_else() -> None:
    announcer = Announcer(0, 0)
    announcer.expect(1, [5, 6])
    announcer.expect(1, [5, 6])
    announcer.expect(1, [8])
    announcer.drop(1, [8])
    announcer.begin(4)
    announcer.confirm(1, [5, 6])
    datagrams = sent(announcer)
    assert [heading(datagram).reader for datagram in datagrams] == [4, 4]
    assert said(datagrams) == [
        (Kind.EXPECT, 1, 2, 6, 5, 6),
        (Kind.EXPECT, 1, 2, 6, 5, 6),
        (Kind.CONFIRM, 1, 2, 6),
    ]
    announcer.confirm(1, [99])  # never told
    assert said(sent(announcer)) == []


def test_long_prompts_are_cut_and_datagrams_small() -> None:
    announcer = Announcer(0, 0)
    blocks = list(range(2 * MOST_BLOCKS))
    for first in range(4):
        announcer.expect(0, blocks[first:])
    announcer.confirm(0, blocks)
    datagrams = sent(announcer)
    assert max(map(len, datagrams)) <= 65_000
    found = [record for datagram in datagrams for record in records(datagram)]
    assert [record.number for record in found] == [MOST_BLOCKS] * 5
    assert found[0].key == found[4].key


def test_what_is_too_much_is_forgotten_and_all_begins_anew() -> None:
    announcer = Announcer(0, 0)
    sent(announcer)
    blocks = list(range(MOST_BLOCKS))
    for number in range(200):
        blocks[-1] = 10**6 + number
        announcer.expect(0, tuple(blocks))
    assert announcer.lost > 0
    datagrams = sent(announcer)
    assert heading(datagrams[0]).anew
    assert sum(map(len, datagrams)) > 200 * 8 * MOST_BLOCKS  # what is on its way is never lost
    assert len({record.key for d in datagrams for record in records(d)}) == 200


@pytest.mark.parametrize("cut", [1, 9, 23, 30, 45])
def test_halves_are_refused(cut: int) -> None:
    announcer = Announcer(0, 0)
    announcer.expect(0, [1])
    whole = sent(announcer)[1]
    with pytest.raises(ValueError, match=r"half|datagram"):
        [heading(whole[:cut]), *records(whole[:cut])]
    assert list(records(whole)) == [Record(Kind.EXPECT, 0, 1, 1, records_blocks(whole))]


def records_blocks(datagram: bytes) -> object:
    return next(records(datagram)).blocks
