from __future__ import annotations

from typing import Any

import pytest

from backend.http1_client import Connection


def test_one_write_for_a_request(wire: Any) -> None:
    wire.request()
    assert wire.transport.writes == 1
    assert wire.transport.written.startswith(b"POST /v1/x HTTP/1.1\r\nhost: replica:8000\r\n")


def test_send_only_once(wire: Any) -> None:
    connection, reader = wire.request()
    with pytest.raises(RuntimeError):
        connection.send(b"POST", b"/", [], b"", reader)
    wire.feed(b"HTTP/1.1 204 N\r\n\r\n")
    with pytest.raises(RuntimeError):
        connection.send(b"POST", b"/", [], b"", reader)


def test_abort_before_send(wire: Any) -> None:
    connection = Connection(wire.protocol, "r")
    connection.abort()
    connection.abort()
    assert wire.transport.aborted
    with pytest.raises(RuntimeError):
        connection.send(b"POST", b"/", [], b"", wire.request)


def test_repr_says_what_it_is(wire: Any) -> None:
    connection, _ = wire.request()
    assert "busy" in repr(connection)
    wire.feed(b"HTTP/1.1 204 N\r\n\r\n")
    assert "over" in repr(connection)
