from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.framing import HEAD_BYTES, HEADERS, INFORMATIONAL
from core.errors import UpstreamProtocolError, UpstreamReset

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
EVENT = 'data: {"choices":[{"delta":{"content":"naïve"}}]}\n\n'.encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def sized(body: bytes, extra: bytes = b"") -> bytes:
    return OK + extra + b"content-length: %d\r\n\r\n" % len(body) + body


class TestResponses:
    def test_one_read_is_one_call_of_each_kind(self, wire: Any) -> None:
        _, reader = wire.request()
        wire.feed(OK + b"X-A:  b \r\nEmpty:\r\nContent-Length: 2\r\n\r\nhi")
        assert (reader.status, reader.body, reader.ended) == (200, b"hi", True)
        assert reader.headers == [(b"x-a", b"b"), (b"empty", b""), (b"content-length", b"2")]
        assert (wire.released_count, wire.transport.aborted) == (1, False)

    def test_events_of_one_read_are_joined_and_of_several_are_not(self, wire: Any) -> None:
        _, reader = wire.request()
        wire.feed(CHUNKED, chunk(EVENT) + chunk(EVENT), chunk(EVENT), b"0\r\n\r\n")
        assert reader.reads == [EVENT + EVENT, EVENT]
        assert reader.ended

    @given(
        bodies=st.lists(st.binary(min_size=1, max_size=40), max_size=6),
        cuts=st.lists(st.integers(0, 400), max_size=8),
        interim=st.integers(0, 2),
    )
    def test_any_split_gives_the_same_body(
        self, new_wire: Any, bodies: list[bytes], cuts: list[int], interim: int
    ) -> None:
        raw = b"HTTP/1.1 102 P\r\nx: y\r\n\r\n" * interim + CHUNKED
        raw += b"".join(map(chunk, bodies)) + b"0\r\ntrailer: dropped\r\n\r\n"
        wire = new_wire()
        for _ in range(2):  # the second time on a reused connection
            _, reader = wire.request()
            edges = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
            wire.feed(*(raw[a:b] for a, b in itertools.pairwise(edges)))
            assert (reader.status, reader.body, reader.ended) == (200, b"".join(bodies), True)
            assert reader.headers == [(b"transfer-encoding", b"chunked")]
        assert wire.released_count == 2

    @pytest.mark.parametrize("status", [204, 304])
    def test_statuses_without_a_body(self, wire: Any, status: int) -> None:
        _, reader = wire.request()
        wire.feed(b"HTTP/1.1 %d X\r\n\r\n" % status)
        assert reader.ended
        assert wire.released_count == 1

    def test_head_has_no_body_and_the_socket_is_not_used_again(self, wire: Any) -> None:
        _, reader = wire.request(b"HEAD")
        wire.feed(sized(b"xy"))
        assert (reader.ended, reader.body) == (True, b"")
        assert wire.transport.aborted

    def test_body_without_length_ends_with_the_connection(self, wire: Any) -> None:
        _, reader = wire.request()
        wire.feed(OK + b"\r\n", b"some", b"thing")
        assert not reader.over
        wire.hang_up()
        assert (reader.ended, reader.body) == (True, b"something")
        assert (wire.released_count, wire.lost_count) == (0, 1)

    def test_body_without_length_that_is_reset_is_not_complete(self, wire: Any) -> None:
        _, reader = wire.request()
        wire.feed(OK + b"\r\nsome")
        wire.hang_up(ConnectionResetError())
        assert isinstance(reader.error, UpstreamReset)

    def test_long_stream_whose_chunk_lines_come_alone(self, wire: Any) -> None:
        _, reader = wire.request()
        wire.feed(CHUNKED)
        for _ in range(HEAD_BYTES // 4):
            wire.feed(b"1\r\n", b"a", b"\r\n")
        assert not reader.over
        assert len(reader.body) == HEAD_BYTES // 4


class TestReuse:
    @pytest.mark.parametrize(
        "raw",
        [
            sized(b"hi", b"connection: close\r\n"),
            sized(b"hi").replace(b"1.1", b"1.0"),
            sized(b"hi") + b"HTTP/1.1 200 OK\r\n\r\nsmuggled",
            sized(b"hi") + b"garbage",
            sized(b"hi", b"connection: close\r\n") + b"garbage",
        ],
    )
    def test_complete_but_closed(self, wire: Any, raw: bytes) -> None:
        _, reader = wire.request()
        wire.feed(raw)
        assert (reader.ended, reader.body) == (True, b"hi")
        assert wire.transport.aborted
        assert wire.released_count == 0

    def test_second_head_does_not_change_the_first(self, wire: Any) -> None:
        _, reader = wire.request()
        wire.feed(sized(b"hi") + b"HTTP/1.1 500 No\r\nx: y\r\n\r\n")
        assert (reader.status, reader.headers) == (200, [(b"content-length", b"2")])

    def test_bytes_on_an_idle_connection_close_it(self, wire: Any) -> None:
        wire.request()
        wire.feed(sized(b"hi"))
        wire.feed(b"HTTP/1.1 200 OK\r\n")
        assert wire.transport.aborted

    def test_answer_before_the_request_was_sent_whole(self, wire: Any) -> None:
        _, reader = wire.request()
        wire.transport.unsent = 1000
        wire.feed(sized(b"hi"))
        assert reader.ended
        assert wire.transport.aborted

    def test_reused_tells_whether_it_served(self, wire: Any) -> None:
        first, _ = wire.request()
        wire.feed(sized(b""))
        second, _ = wire.request()
        assert (first.reused, second.reused) == (False, True)


BAD = {
    "garbage": b"\x16\x03\x01\x00",
    "other protocol": b"RTSP/1.1 200 OK\r\n\r\n",
    "another one": b"ICE/1.0 200 OK\r\n\r\n",
    "no version": b"200 OK\r\n\r\n",
    "version 2.0": b"HTTP/2.0 200 OK\r\n\r\n",
    "version 0.9": b"HTTP/0.9 200 OK\r\n\r\n",
    "status 099": b"HTTP/1.1 099 X\r\n\r\n",
    "status 600": b"HTTP/1.1 600 X\r\ncontent-length: 0\r\n\r\n",
    "status 999": b"HTTP/1.1 999 X\r\ncontent-length: 0\r\n\r\n",
    "101 unasked": b"HTTP/1.1 101 X\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "101 bare": b"HTTP/1.1 101 X\r\n\r\n",
    "bare LF": b"HTTP/1.1 200 OK\n\n",
    "two lengths": OK + b"content-length: 2\r\ncontent-length: 2\r\n\r\nhi",
    "length and chunked": OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\nhi",
    "gzip, chunked": OK + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "gzip": OK + b"transfer-encoding: gzip\r\n\r\nxx",
    "chunked twice": OK + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "chunked on 1.0": CHUNKED.replace(b"1.1", b"1.0") + b"0\r\n\r\n",
    "folded": OK + b"a: b\r\n c\r\n\r\n",
    "space in name": OK + b"a b: c\r\n\r\n",
    "bare CR": OK + b"a: b\rc\r\n\r\n",
    "negative length": OK + b"content-length: -1\r\n\r\n",
    "huge length": OK + b"content-length: 99999999999999999999\r\n\r\n",
    "bad chunk size": CHUNKED + b"zz\r\n",
    "huge chunk size": CHUNKED + b"f" * 17 + b"\r\n",
    "no chunk end": CHUNKED + b"1\r\nab",
    "1xx flood": b"HTTP/1.1 100 C\r\n\r\n" * (INFORMATIONAL + 1),
    "many headers": OK + b"a: b\r\n" * (HEADERS + 1) + b"\r\n",
    "long header": OK + b"a: " + b"b" * HEAD_BYTES + b"\r\n\r\n",
    "long trailer": CHUNKED + b"0\r\na: " + b"b" * HEAD_BYTES + b"\r\n\r\n",
}


class TestRefused:
    @pytest.mark.parametrize("name", BAD)
    @pytest.mark.parametrize("step", [1 << 20, 1])
    def test_not_acceptable(self, wire: Any, name: str, step: int) -> None:
        _, reader = wire.request()
        raw = BAD[name]
        step = step if len(raw) < 5000 else max(step, 4096)
        wire.feed(*(raw[at : at + step] for at in range(0, len(raw), step)))
        assert isinstance(reader.error, UpstreamProtocolError), name
        assert wire.transport.aborted
        assert wire.released_count == 0

    @pytest.mark.parametrize("code", [*range(9), *range(10, 32), 127])
    def test_control_characters_in_values(self, wire: Any, code: int) -> None:
        _, reader = wire.request()
        wire.feed(OK + b"a: b%cc\r\n\r\n" % code)
        assert isinstance(reader.error, UpstreamProtocolError)

    @pytest.mark.parametrize("start", [OK + b"a: ", OK, CHUNKED + b"1;", CHUNKED + b"0\r\nt: "])
    def test_what_never_ends_is_bounded(self, wire: Any, start: bytes) -> None:
        _, reader = wire.request()
        wire.feed(start)
        sent = 0
        while not reader.over and sent < 4 * HEAD_BYTES:
            wire.feed(b"b" * 4096)
            sent += 4096
        assert isinstance(reader.error, UpstreamProtocolError)
        assert sent <= HEAD_BYTES + 4096

    def test_words_come_from_us_not_from_the_replica(self, wire: Any) -> None:
        _, reader = wire.request()
        wire.feed(b"HTTP/1.1 secret\r\n\r\n")
        assert reader.error is not None
        assert "secret" not in str(reader.error)

    @given(st.binary(max_size=60), st.integers(0, 120), st.integers(0, 30))
    def test_mutated_responses_never_crash(
        self, new_wire: Any, noise: bytes, at: int, drop: int
    ) -> None:
        raw = OK + b"x-a: b\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(EVENT) + b"0\r\n\r\n"
        wire = new_wire()
        _, reader = wire.request()
        wire.feed(raw[:at] + noise + raw[at + drop :])
        wire.hang_up()
        assert reader.over


class TestLost:
    @pytest.mark.parametrize(
        ("sent", "answered"),
        [(b"", False), (b"HTTP/1.1 2", True), (CHUNKED, True), (CHUNKED + b"5\r\nab", True)],
    )
    @pytest.mark.parametrize("error", [None, ConnectionResetError()])
    def test_before_the_end(
        self, wire: Any, sent: bytes, answered: bool, error: Exception | None
    ) -> None:
        _, reader = wire.request()
        if sent:
            wire.feed(sent)
        wire.hang_up(error)
        assert isinstance(reader.error, UpstreamReset)
        assert (reader.error.reused, reader.error.answered) == (False, answered)
        assert wire.lost_count == 1

    def test_reused_before_any_byte(self, wire: Any) -> None:
        wire.request()
        wire.feed(sized(b""))
        _, reader = wire.request()
        wire.hang_up(ConnectionResetError())
        assert (reader.error.reused, reader.error.answered) == (True, False)

    async def test_between_connect_and_send(self, wire: Any, new_wire: Any) -> None:
        import asyncio

        from backend.http1_client import Connection

        connection = Connection(wire.protocol, "r")
        wire.hang_up()
        reader = type(new_wire().request()[1])()
        connection.send(b"POST", b"/", [], b"", reader)
        assert not reader.over, "never inside send"
        await asyncio.sleep(0)
        assert (reader.error.reused, reader.error.answered) == (False, False)

    def test_every_cut_of_a_stream_fails_but_the_last(self, new_wire: Any) -> None:
        raw = CHUNKED + chunk(EVENT) + b"0\r\n\r\n"
        for cut in range(len(raw) + 1):
            wire = new_wire()
            _, reader = wire.request()
            if cut:
                wire.feed(raw[:cut])
            wire.hang_up()
            assert reader.ended == (cut == len(raw)), cut
            assert isinstance(reader.error, UpstreamReset) or cut == len(raw)


class TestHold:
    def test_abort_inside_on_body_silences_everything(self, wire: Any) -> None:
        connection, reader = wire.request()
        reader.on_each_body = connection.abort
        wire.feed(CHUNKED + chunk(b"a") + b"0\r\n\r\n", chunk(b"b"))
        wire.hang_up()
        assert (reader.reads, reader.over) == ([b"a"], False)
        assert (wire.transport.aborted, wire.released_count, wire.lost_count) == (True, 0, 1)

    def test_abort_after_the_end_spares_the_next_exchange(self, wire: Any) -> None:
        first, _ = wire.request()
        wire.feed(sized(b""))
        _, reader = wire.request()
        first.abort()
        first.pause_reading()
        wire.feed(sized(b"hi"))
        assert (reader.ended, reader.body) == (True, b"hi")

    def test_pause_and_resume_are_idempotent_and_safe(self, wire: Any) -> None:
        connection, _ = wire.request()
        connection.resume_reading()
        connection.pause_reading()
        connection.pause_reading()
        assert not wire.transport.reading
        connection.resume_reading()
        connection.resume_reading()
        assert wire.transport.reading
        connection.pause_reading()
        connection.abort()
        connection.resume_reading()
        connection.pause_reading()
        connection.abort()

    def test_paused_at_the_end_reads_again(self, wire: Any) -> None:
        connection, reader = wire.request()
        reader.on_each_body = connection.pause_reading
        wire.feed(sized(b"hi"))
        assert reader.ended
        assert wire.transport.reading, "an idle socket must notice that its peer leaves"
