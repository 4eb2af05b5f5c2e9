"""The part of the section `auth` about API keys."""

from __future__ import annotations

import re
from datetime import datetime
from typing import ClassVar, Self

from core.section import Contradictions, FilePath, Section

MAX_NAME_CHARS = 256
MAX_PRIORITY = 1000

_match_sha256 = re.compile(r"[0-9a-fA-F]{64}").fullmatch
_match_date = re.compile(r"\d{4}-\d\d-\d\d").fullmatch


class Instant(float):
    """A moment in Unix seconds, written as `2027-01-31` or `2027-01-31T12:00:00Z`."""

    __slots__ = ()
    expected: ClassVar[str] = "a date (2027-01-31) or a moment with its zone (2027-01-31T12:00:00Z)"
    schema: ClassVar[dict[str, object]] = {"type": "string"}

    @classmethod
    def from_text(cls, text: str, base: str) -> Self:
        if _match_date(text):
            text += "T00:00:00Z"
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise ValueError(f"expected {cls.expected}, got {text[:64]!r}")
        return cls(moment.timestamp())


class QuotaConfig(Section):
    """A caller's own figures for one rule of the limits; 0: nothing."""

    limit: int
    burst: int | None = None

    def __post_init__(self) -> None:
        faults = [
            (f".{name}", "expected at least 0")
            for name in ("limit", "burst")
            if (value := getattr(self, name)) is not None and value < 0
        ]
        if faults:
            raise Contradictions(faults)


class ApiKeyConfig(Section):
    """One API key, by the hex SHA-256 of it; `headrace key new` makes the entry.

    `id` names it in logs, limits and revocations. `models`: None means all. `priority`: of its
    requests among those that wait at a replica, the lowest first.
    """

    id: str
    sha256: str
    tenant: str
    user: str = ""
    tier: str = ""
    organisation: str = ""
    groups: tuple[str, ...] = ()
    models: tuple[str, ...] | None = None
    limits: dict[str, QuotaConfig] = {}  # noqa: RUF012 - copied for each
    priority: int = 0
    expires_at: Instant | None = None

    def __post_init__(self) -> None:
        faults = [
            (f".{name}", "expected 1 to 256 printable characters")
            for name in ("id", "tenant")
            if not _is_name(getattr(self, name))
        ]
        faults += [
            (f".{name}", "expected at most 256 printable characters")
            for name in ("user", "tier", "organisation")
            if (value := getattr(self, name)) and not _is_name(value)
        ]
        if not _match_sha256(self.sha256):
            # What was written is not shown: it may be the key.
            sentence = "expected 64 hex digits, as `headrace key new` prints them (not the key)"
            faults.append((".sha256", sentence))
        if fault := priority_fault(self.priority):
            faults.append((".priority", fault))
        if faults:
            raise Contradictions(faults)


class ApiKeysConfig(Section):
    """`keys`, and those in the YAML file `file`, which has a list `keys` too."""

    file: FilePath | None = None
    keys: tuple[ApiKeyConfig, ...] = ()

    def __post_init__(self) -> None:
        if self.file is None and not self.keys:
            raise ValueError("expected `file`, `keys` or both")


def priority_fault(value: int) -> str | None:
    if -MAX_PRIORITY <= value <= MAX_PRIORITY:
        return None
    return f"expected a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}"


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME_CHARS and text.isprintable()
