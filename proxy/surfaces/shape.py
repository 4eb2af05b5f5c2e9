"""How one API words its errors and its streams. Pure.

The relay passes bytes on whatever the API; this is what it must know of them: which events hold an
answer, which one ends it, where usage stands, and how to say that it was cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from core.errors import GatewayError


class Scanner(Protocol):
    """Watches one stream. `events` counts the events that may hold content, `usage` is in the words
    of chat completions, `mid_event` says that the client has seen a part of an event."""

    events: int
    terminated: bool
    usage: dict[str, Any] | None
    error: dict[str, Any] | None

    @property
    def mid_event(self) -> bool: ...

    def push(self, data: bytes) -> None: ...

    def judge(self, data: bytes) -> bytes: ...

    def pass_on(self, data: bytes) -> None: ...

    def finish(self) -> bytes: ...

    def part(self) -> None: ...


class ScannerMaker(Protocol):
    def __call__(
        self,
        write: Callable[[bytes], None],
        on_terminated: Callable[[bytes], None],
        *,
        strip_usage: bool,
    ) -> Scanner: ...


@dataclass(frozen=True, slots=True)
class Shape:
    """`error_object`: the body of an error answer, by the error and the request's id.
    `error_event`: the same as the last event of a stream. `error_in`: the error that the data of an
    event tells of, or None. `preamble`: whether the data of an event is sent before the replica has
    accepted the request, so that it proves nothing (None: no event is). `usage`: the `usage` of an
    answer in one piece in the words of chat completions (None: those are its words)."""

    error_object: Callable[[GatewayError, str], dict[str, Any]]
    error_event: Callable[[GatewayError, str], bytes]
    scanner: ScannerMaker
    error_in: Callable[[bytes], dict[str, Any] | None]
    preamble: Callable[[bytes], bool] | None = None
    usage: Callable[[dict[str, Any] | None], dict[str, Any] | None] | None = None
