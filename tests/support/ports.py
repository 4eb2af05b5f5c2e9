"""Ports of 127.0.0.1."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket

_SHARES, _EACH = 8, 1_500
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
# Each process that tests at the same time has a share, and comes back to a port late: whoever was
# told of one has not bound it yet when the next one is asked for. Another run may go on beside.
_LOWEST = 20_000 + _WORKER % _SHARES * _EACH
_NUMBERS = itertools.count(random.SystemRandom().randrange(_EACH))


def free_port() -> int:
    """A port of 127.0.0.1 for later: below those that the system gives to clients."""
    while True:
        port = _LOWEST + next(_NUMBERS) % _EACH
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
