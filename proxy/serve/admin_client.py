"""Asking the admin listener of a running gateway, from the command line."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

from proxy.listen.address import Address

_TIMEOUT_S = 5.0
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class CannotAsk(Exception):
    """The gateway's admin listener does not answer, in words."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(self._path)


def fetch(address: Address, path: str) -> bytes:
    """One page of an admin listener. Raises CannotAsk."""
    connection = _connection(address)
    try:
        with _asked(address, connection, path) as answer:
            return answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise _silent(address, error) from error
    finally:
        connection.close()


def post(address: Address, path: str, body: bytes) -> bytes:
    """The answer of an admin listener to `body`. Raises CannotAsk, with its words if it is not
    200."""
    connection = _connection(address)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        data = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise _silent(address, error) from error
    finally:
        connection.close()
    if answer.status != 200:
        words = data.decode("utf-8", "replace").strip()
        raise CannotAsk(f"the admin listener at {address} answered {answer.status}: {words}")
    return data


def follow(address: Address, path: str) -> Iterator[bytes]:
    """The data of each event of a feed, until the gateway ends. Raises CannotAsk."""
    connection = _connection(address)
    try:
        with _asked(address, connection, path) as answer:
            while line := answer.readline():
                if line.startswith(b"data: "):
                    yield line[6:]
    except (OSError, http.client.HTTPException) as error:
        raise _silent(address, error) from error
    finally:
        connection.close()


def _connection(address: Address) -> http.client.HTTPConnection:
    if address.is_unix:
        return _UnixConnection(address.path)
    host = _ANY.get(address.host, address.host)
    return http.client.HTTPConnection(host, address.port, timeout=_TIMEOUT_S)


def _asked(
    address: Address, connection: http.client.HTTPConnection, path: str
) -> http.client.HTTPResponse:
    connection.request("GET", path)
    answer = connection.getresponse()
    if answer.status != 200:
        answer.close()
        raise CannotAsk(f"the admin listener at {address} answered {answer.status}")
    return answer


def _silent(address: Address, error: Exception) -> CannotAsk:
    return CannotAsk(f"no gateway answers at its admin listener, {address}: {error}")
