"""Tells systemd how it stands, where it wants to know (`Type=notify`, sd_notify(3))."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping


def notify(state: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send lines like `READY=1`. Nobody wants to know: nothing happens."""
    place = environment.get("NOTIFY_SOCKET", "")
    if not place.startswith(("/", "@")):
        return
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock,
    ):
        sock.connect("\0" + place[1:] if place[0] == "@" else place)
        sock.send(state.encode())
