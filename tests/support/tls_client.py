"""A blocking HTTPS client that says what TLS did: for threads, and for one request at a time."""

from __future__ import annotations

import json
import socket
import ssl
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Reply:
    """`shown` is the server's certificate (DER), `session` is for the next connection."""

    status: int
    body: Any
    shown: bytes
    resumed: bool
    session: ssl.SSLSession | None

    @property
    def code(self) -> str | None:
        """Of an error."""
        code: str | None = self.body.get("error", {}).get("code")
        return code


def get(
    port: int,
    context: ssl.SSLContext,
    sni: str | None = "localhost",
    *,
    host: str | None = None,
    path: str = "/healthz",
    session: ssl.SSLSession | None = None,
) -> Reply:
    """One request on a connection of its own. `host`: of the request, the one of the handshake
    unless given. Raises ssl.SSLError, also when an alert comes after the handshake."""
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        context.wrap_socket(plain, server_hostname=sni, session=session) as secure,
    ):
        lines = [f"GET {path} HTTP/1.1", f"Host: {host or sni or '127.0.0.1'}", "Connection: close"]
        secure.sendall("\r\n".join([*lines, "", ""]).encode())
        data = b""
        while more := secure.recv(65_536):
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        return Reply(
            status=int(head.split(b" ")[1]),
            body=json.loads(body),
            shown=secure.getpeercert(binary_form=True) or b"",
            resumed=bool(secure.session_reused),
            session=secure.session,
        )
