"""The process's own log: JSON lines on stderr, never blocking, each message at a bounded rate."""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime

from core.clock import Clock
from core.errors import ConfigError, GatewayError
from proxy.line_sink import LINE_BYTES, LineSink

WINDOW_S = 10.0
PER_MESSAGE = 10
PER_LOGGER = 100
"""Lines let through in each window: of one message of one logger, and of one logger."""
KEYS = 1024
_CUTS = (2000, 300, 100)
"""Characters kept of the message and of the traceback's end; the last always fits."""

_WORDED = (GatewayError, ConfigError, OSError, AttributeError, NameError, TypeError, ImportError)
"""Exceptions whose words are safe. Others may quote what they were given, a prompt for example."""

_Key = tuple[str, str | None]


class MessageLimiter:
    """Counts lines per key in fixed windows, so that what an attacker provokes cannot flood."""

    def __init__(self) -> None:
        self._windows: dict[_Key, tuple[float, int]] = {}

    def __repr__(self) -> str:
        return f"<MessageLimiter {len(self._windows)} messages>"

    def admit(self, logger: str, message: str, now: float) -> int | None:
        """How many of this message were held back before it; None if it is held back too."""
        held_back = self._count((logger, message), PER_MESSAGE, now)
        if held_back is None or self._count((logger, None), PER_LOGGER, now) is None:
            return None
        return held_back

    def _count(self, key: _Key, limit: int, now: float) -> int | None:
        began_at, count = self._windows.get(key, (now, 0))
        held_back = 0
        if now - began_at >= WINDOW_S:
            held_back = max(0, count - limit)
            began_at, count = now, 0
        if len(self._windows) >= KEYS and key not in self._windows:
            self._windows.clear()
        self._windows[key] = (began_at, count + 1)
        return held_back if count < limit else None


class JsonLineHandler(logging.Handler):
    """Formats records as JSON and hands them to a LineSink at once."""

    def __init__(self, sink: LineSink, clock: Clock = time.monotonic) -> None:
        super().__init__()
        self._sink = sink
        self._clock = clock
        self._limiter = MessageLimiter()

    def __repr__(self) -> str:
        return f"<JsonLineHandler {self._sink}>"

    def emit(self, record: logging.LogRecord) -> None:
        held_back = 0
        if record.levelno > logging.DEBUG:
            admitted = self._limiter.admit(record.name, str(record.msg)[:200], self._clock())
            if admitted is None:
                return
            held_back = admitted
        self._sink.put(json_line(record, held_back))
        self._sink.flush()

    def close(self) -> None:
        self._sink.close()
        super().close()


def json_line(record: logging.LogRecord, held_back: int = 0) -> bytes:
    """One record as one line of ASCII, at most LINE_BYTES long."""
    try:
        message = record.getMessage()
    except (
        TypeError,
        ValueError,
    ):  # arguments that do not fit: still worth a line
        message = str(record.msg)
    trace = _trace(record.exc_info[1]) if record.exc_info and record.exc_info[1] else ""
    fields: dict[str, object] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
        "level": record.levelname.lower(),
        "logger": record.name,
        "pid": record.process,
    }
    if held_back:
        fields["held_back"] = held_back
    line = b""
    for cut in _CUTS:
        fields["message"] = message[:cut]
        if trace:
            fields["trace"] = trace[-cut:]
        line = json.dumps(fields).encode() + b"\n"
        if len(line) <= LINE_BYTES:
            break
    return line


def _trace(error: BaseException | None) -> str:
    """Where an exception comes from, and those behind it, the first one first."""
    lines: list[str] = []
    while error is not None:
        words = f": {error}" if isinstance(error, _WORDED) else ""
        where = "".join(traceback.format_tb(error.__traceback__))
        lines.append(f"{where}{type(error).__qualname__}{words}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(reversed(lines))


def set_up_logging(
    level: str, dropped: Callable[[int], None] = lambda _: None, target: str = "stderr"
) -> JsonLineHandler:
    """Send every logger's records to `target`; close the handler to undo it.

    `level` (debug, info, warning, error) holds for our own loggers, libraries speak from `warning`
    on. Raises ConfigError if the target cannot be opened.
    """
    handler = JsonLineHandler(LineSink(target, dropped))
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, JsonLineHandler)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    set_level(level)
    return handler


def set_level(level: str) -> None:
    """From which level on our own loggers speak."""
    logging.getLogger("headrace").setLevel(level.upper())
