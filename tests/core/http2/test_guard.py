from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.http2 import frames
from core.http2.engine import ErrorCode
from core.http2.frames import PREFACE, frame
from core.http2.guard import FrameGuard

NOW = 100.0
END = frames.END_HEADERS | frames.END_STREAM


def head(stream: int, flags: int = END) -> bytes:
    return frame(frames.HEADERS, flags, stream, b"\x82")


FLOODS: dict[str, tuple[bytes, str]] = {
    "RST_STREAM": (frame(frames.RST_STREAM, 0, 1, b"\0\0\0\x08"), "resets"),
    "SETTINGS": (frame(frames.SETTINGS, 0, 0), "settings"),
    "SETTINGS acknowledged": (frame(frames.SETTINGS, frames.ACK, 0), "settings"),
    "PING": (frame(frames.PING, 0, 0, bytes(8)), "pings"),
    "PRIORITY": (frame(frames.PRIORITY, 0, 3, bytes(5)), "priority"),
    "PRIORITY_UPDATE": (frame(0x10, 0, 0, bytes(5)), "priority"),
    "WINDOW_UPDATE": (frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\0\1"), "window_updates"),
    "empty DATA": (frame(frames.DATA, 0, 1), "small_data"),
    "DATA of one byte": (frame(frames.DATA, 0, 1, b"x"), "small_data"),
    "DATA of padding": (frame(frames.DATA, 0x8, 1, b"\xff" + bytes(255)), "small_data"),
    "CONTINUATION": (frame(frames.CONTINUATION, 0, 1), "continuations"),
    "PUSH_PROMISE": (frame(frames.PUSH_PROMISE, 0, 1, bytes(4)), "unknown"),
    "unknown frames": (frame(0xBA, 0, 0, b"grease"), "unknown"),
    "GOAWAY": (frame(frames.GOAWAY, 0, 0, bytes(8)), "goaways"),
}


def guard() -> FrameGuard:
    return FrameGuard(max_header_bytes=65_536, now=NOW, preface=False)


def small_guard() -> FrameGuard:
    return FrameGuard(max_header_bytes=12_000, now=NOW, preface=False)


@pytest.mark.parametrize(("flood", "budget"), FLOODS.values(), ids=FLOODS.keys())
def test_a_flood_is_cut_within_a_thousand_frames(flood: bytes, budget: str) -> None:
    judge = guard()
    for _ in range(1_000):
        if not judge.feed(flood, NOW, 0):
            break
    assert judge.exceeded == budget
    assert not judge.feed(head(1), NOW, 0), "once exceeded it stays so"


@pytest.mark.parametrize(("flood", "budget"), FLOODS.values(), ids=FLOODS.keys())
def test_a_flood_in_one_read_is_cut(flood: bytes, budget: str) -> None:
    judge = guard()
    assert not judge.feed(flood * 1_000, NOW, 0)
    assert judge.exceeded == budget


@pytest.mark.parametrize(("flood", "budget"), FLOODS.values(), ids=FLOODS.keys())
def test_the_same_frames_now_and_then_are_no_flood(flood: bytes, budget: str) -> None:
    judge = guard()
    judge.feed(head(1, frames.END_HEADERS), NOW, 0)
    for second in range(1_000):
        assert judge.feed(head(3 + 2 * second) + flood, NOW + second, 0)


def test_a_mass_cancellation_of_a_full_connection_is_no_flood() -> None:
    judge = guard()
    assert judge.feed(FLOODS["RST_STREAM"][0] * 100, NOW, 0)


def test_resets_within_ten_seconds_stay_within_two_hundred() -> None:
    judge, resets = guard(), 0
    for tenth in range(100):
        for _ in range(100):
            if judge.feed(FLOODS["RST_STREAM"][0], NOW + tenth / 10, 0):
                resets += 1
    assert judge.exceeded == "resets"
    assert resets <= 200


def test_resets_by_either_side_share_a_budget() -> None:
    judge, count = guard(), 0
    while judge.feed(FLOODS["RST_STREAM"][0], NOW, 0) and judge.count_reset(NOW):
        count += 2
    assert judge.exceeded == "resets"
    assert count <= 200


def test_a_client_that_updates_windows_for_every_frame_is_no_flood() -> None:
    judge, update = guard(), FLOODS["WINDOW_UPDATE"][0]
    for sent in range(100, 1_000_000, 100):
        assert judge.feed(update * 2, NOW, sent)


def test_header_bytes_have_a_budget() -> None:
    judge, blocks = guard(), 0
    while judge.count_header_bytes(65_536, NOW):
        blocks += 1
    assert judge.exceeded == "header_bytes"
    assert 50 < blocks < 100


def test_requests_with_tokens_are_no_flood_however_many_they_are() -> None:
    judge = guard()
    for _ in range(20_000):
        assert judge.count_header_bytes(4_000, NOW)


def test_a_header_block_is_bounded_in_pieces_and_bytes() -> None:
    head = frame(frames.HEADERS, 0, 1, b"x")
    piece = frame(frames.CONTINUATION, 0, 1, b"x")
    assert guard().feed(head + piece * 8, NOW, 0)
    assert not guard().feed(head + piece * 9, NOW, 0)
    large = frame(frames.CONTINUATION, 0, 1, bytes(10_000))
    assert small_guard().feed(head + large * 2, NOW, 0)
    assert not small_guard().feed(head + large * 3, NOW, 0)


def test_a_frame_that_is_too_large_is_not_waited_for() -> None:
    judge = guard()
    assert judge.feed(frame(frames.DATA, 0, 1, bytes(16_384)), NOW, 0)
    assert not judge.feed(b"\x00\x40\x01\x00\x00\x00\x00\x00\x01", NOW, 0)
    assert judge.exceeded == "frame_size"
    assert judge.code == ErrorCode.FRAME_SIZE_ERROR


def test_a_header_block_that_goes_on_is_known_since_when() -> None:
    judge = guard()
    judge.feed(head(1), NOW, 0)
    assert judge.block_since == 0.0
    judge.feed(frame(frames.HEADERS, 0, 3, b"\x82"), NOW + 1, 0)
    judge.feed(frame(frames.CONTINUATION, 0, 3, b"\x82"), NOW + 2, 0)
    assert judge.block_since == NOW + 1
    judge.feed(frame(frames.CONTINUATION, frames.END_HEADERS, 3, b"\x82"), NOW + 3, 0)
    assert judge.block_since == 0.0


def test_an_upload_and_many_requests_are_no_flood() -> None:
    judge = guard()
    upload = frame(frames.DATA, 0, 1, bytes(16_384)) * 16
    for _ in range(100):
        assert judge.feed(upload, NOW, 0)
    for number in range(20_000):
        assert judge.feed(head(3 + 2 * number), NOW, 0)


OPEN, TRAILERS = head(5, frames.END_HEADERS), head(5)
BODY, LAST = frame(frames.DATA, 0, 5, bytes(64)), frame(frames.DATA, frames.END_STREAM, 5)
RESET = frame(frames.RST_STREAM, 0, 5, bytes(4))


@pytest.mark.parametrize(
    "said",
    [
        OPEN + LAST + BODY,
        OPEN + RESET + BODY,
        OPEN + TRAILERS + BODY,
        head(5) + BODY,
        head(5) + head(5),
        OPEN + RESET + TRAILERS,
        OPEN + head(3),
        OPEN + frame(frames.DATA, 0, 3, bytes(64)),
    ],
)
def test_no_message_comes_on_a_stream_that_has_ended_or_cannot_begin(said: bytes) -> None:
    judge = guard()
    assert not judge.feed(said, NOW, 0)
    assert (judge.exceeded, judge.code) == ("stream_state", ErrorCode.STREAM_CLOSED)


@pytest.mark.parametrize(
    "said",
    [
        OPEN + BODY + BODY + LAST,
        OPEN + BODY + TRAILERS,
        OPEN + head(7) + BODY + TRAILERS,
        OPEN + RESET + RESET + frame(frames.WINDOW_UPDATE, 0, 5, bytes(4)),
        head(5) + frame(frames.PRIORITY, 0, 5, bytes(5)) + frame(frames.PRIORITY, 0, 3, bytes(5)),
        head(5, frames.END_STREAM) + BODY,  # inside a header block: the engine's to refuse
        frame(frames.HEADERS, frames.END_HEADERS, 2**31 | 5, b"\x82") + BODY,  # the reserved bit
    ],
)
def test_what_a_stream_allows_passes(said: bytes) -> None:
    assert guard().feed(said, NOW, 0)


def test_priority_is_of_a_stream() -> None:
    judge = guard()
    assert not judge.feed(frame(frames.PRIORITY, 0, 0, bytes(5)), NOW, 0)
    assert judge.code == ErrorCode.PROTOCOL_ERROR


@given(
    counts=st.lists(
        st.tuples(st.sampled_from(sorted(FLOODS)), st.integers(1, 200)), min_size=1, max_size=6
    ),
    cuts=st.lists(st.integers(1, 50), min_size=1, max_size=5),
)
def test_how_the_bytes_are_cut_makes_no_difference(
    counts: list[tuple[str, int]], cuts: list[int]
) -> None:
    data = PREFACE + b"".join(FLOODS[name][0] * count for name, count in counts)
    whole = FrameGuard(max_header_bytes=65_536, now=NOW)
    whole.feed(data, NOW, 0)
    pieces = FrameGuard(max_header_bytes=65_536, now=NOW)
    at = turn = 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        pieces.feed(data[at : at + size], NOW, 0)
        at, turn = at + size, turn + 1
        if pieces.exceeded:
            break
    assert pieces.exceeded == whole.exceeded
