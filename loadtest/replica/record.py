"""What the replica saw and did: one record a generation request. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Record:
    """Instants are monotonic seconds; `aborted_at` is when the client's close was seen.

    outcome: in_flight, done, aborted (by the client), refused (an error answer) or faulted (the
    misbehaviour ended it).
    """

    request_id: str
    path: str
    started_at: float
    model: str = ""
    stream: bool = False
    rank: int = 0
    status: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sent_tokens: int = 0
    sent_bytes: int = 0
    ended_at: float | None = None
    aborted_at: float | None = None
    outcome: str = "in_flight"
    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Everything but headers and body."""
        return {
            name: getattr(self, name)
            for name in self.__dataclass_fields__
            if name not in ("headers", "body")
        }
