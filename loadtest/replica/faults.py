"""What the misbehaviours do, in two places: before the head, and where a stream stops. Performs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from loadtest.replica import dialect
from loadtest.replica.answer import Answer
from loadtest.replica.behaviour import Behaviour
from loadtest.replica.connection import Connection

FLOOD_EVENTS = 256


def before_head(connection: Connection, behaviour: Behaviour, head: bytes) -> bool:
    """Do what has to be done before an answer. True: there will be no answer."""
    if "one_byte" in behaviour:
        connection.slice_writes(None)
    elif "split" in behaviour:
        connection.slice_writes(int(behaviour["split"]))
    if "reset_before_head" in behaviour:
        connection.reset()
    elif "garbage" in behaviour:
        connection.write(b"\x16\x03\x01 this is \xff\xfe no HTTP \x00\x01\r\n\r\n" * 8)
        connection.close()
    elif "header_bomb" in behaviour:
        connection.write(_header_bomb(head, int(behaviour["header_bomb"])))
        connection.finished()
    elif "switching" in behaviour:
        connection.write(
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: foo\r\n\r\nbar"
        )
    else:
        if "interim_flood" in behaviour:
            interim = b"HTTP/1.1 102 Processing\r\nx-interim: yes\r\n\r\n"
            connection.write(interim * int(behaviour["interim_flood"]))
        return False
    return True


def arrange(answer: Answer) -> None:
    """Set where and how `answer` stops, if its behaviour says so; the first name found counts."""
    for name, (at_start, act) in _STOPS.items():
        if name in answer.behaviour:
            value = answer.behaviour[name]
            whole_error = name == "error_mid" and not answer.record.stream
            answer.stop_at = 0 if at_start or whole_error else int(value)
            answer.at_stop = functools.partial(act, answer, value)
            return


def _header_bomb(head: bytes, size: int) -> bytes:
    lines, opening = [], head[:-2]
    for number in range(size // 64 + 1):
        lines.append(b"x-bomb-%08d: %b\r\n" % (number, b"a" * 45))
    return opening + b"".join(lines) + b"\r\n" + dialect.LAST_CHUNK


def _stall(answer: Answer, value: float) -> None:
    """Silence; the client has to leave. The job stays running, as in a hung engine."""


def _stall_first(answer: Answer, seconds: float) -> None:
    if math.isfinite(seconds):
        answer.later(seconds)


def _head_only(answer: Answer, value: float) -> None:
    answer.end()
    answer.connection.close()


def _empty(answer: Answer, value: float) -> None:
    if answer.record.stream:
        answer.end_body()
    else:
        answer.connection.write(answer.owner.head(200, b"application/json", 0))
    answer.end()
    answer.connection.finished()


def _kill(answer: Answer, value: float) -> None:
    answer.end()
    answer.connection.reset()


def _exit(answer: Answer, value: float) -> None:
    answer.end()
    answer.connection.close()  # what a killed process had written still arrives
    answer.owner.die()


def _truncate(answer: Answer, value: float) -> None:
    if answer.record.stream:
        before, after = answer.wording.halves()
        whole = dialect.chunk(before + after)
        answer.connection.write(whole[: len(whole) // 2])
    answer.end()
    answer.connection.close()


def _garbage(answer: Answer, value: float) -> None:
    answer.connection.write(b"zz\xff\r\nno chunk\x00\r\n")
    answer.end()
    answer.connection.close()


def _error(answer: Answer, code: int) -> None:
    if answer.record.stream:
        answer.end_body(*answer.wording.failure(code))
    else:
        body = dialect.compact(answer.wording.error_body(code)).encode()
        answer.record.status = code
        answer.connection.write(answer.owner.head(code, b"application/json", len(body)) + body)
    answer.end()
    answer.connection.finished()


def _flood(answer: Answer, mebibytes: float) -> None:
    """Events without a pause, except while the transport says that its buffer is full."""
    if not answer.record.stream:
        answer.later(0)
        return
    before, after = answer.wording.halves()
    block = dialect.chunk(before + b" flood" * 8 + after) * FLOOD_EVENTS
    connection = answer.connection
    end = connection.written + int(mebibytes * 1_048_576)

    def pour() -> None:
        while connection.writable and connection.written < end:
            connection.write(block)
            answer.count_bytes()
        if connection.written >= end:
            connection.on_writable = None
            answer.later(0)

    connection.on_writable = pour
    pour()


# name -> (stops before the first event, what then)
_STOPS: dict[str, tuple[bool, Callable[[Answer, float], None]]] = {
    "head_only": (True, _head_only),
    "empty": (True, _empty),
    "stall_first": (True, _stall_first),
    "error_first": (True, lambda answer, value: _error(answer, int(value))),
    "flood": (True, _flood),
    "stall_mid": (False, _stall),
    "kill_mid": (False, _kill),
    "exit_mid": (False, _exit),
    "truncate": (False, _truncate),
    "garbage_mid": (False, _garbage),
    "error_mid": (False, lambda answer, _: _error(answer, 500)),
}
