"""Ports of 127.0.0.1."""

from __future__ import annotations

import contextlib
import random
import socket

_RANDOM = random.SystemRandom()  # processes with the same seed must not choose the same ones


def free_port() -> int:
    """A port of 127.0.0.1 for later: below those that the system gives to clients."""
    while True:
        with (
            contextlib.suppress(OSError),
            socket.create_server(("127.0.0.1", _RANDOM.randrange(20_000, 32_000))) as probe,
        ):
            port: int = probe.getsockname()[1]
            return port
