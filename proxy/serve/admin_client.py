"""Asking the admin listener of a running gateway, from the command line."""

from __future__ import annotations

import http.client
import socket

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
    if address.is_unix:
        connection: http.client.HTTPConnection = _UnixConnection(address.path)
    else:
        host = _ANY.get(address.host, address.host)
        connection = http.client.HTTPConnection(host, address.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise CannotAsk(f"no gateway answers at its admin listener, {address}: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise CannotAsk(f"the admin listener at {address} answered {answer.status}")
    return body
