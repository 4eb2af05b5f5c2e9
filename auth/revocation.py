"""Credentials that count no longer, before they expire. Pure but for the reading of a file.

A name is `key:ID` (an API key), `jti:ID` (one token) or `user:TENANT/USER` (all that is shown as
that user).
"""

from __future__ import annotations

from core.errors import ConfigError
from core.principal import Principal

MAX_REVOKED = 10_000
MAX_CHARS = 600
_KINDS = ("key", "jti", "user")


class Revoked:
    """The names that are revoked at the moment: replaced whole by whoever follows them."""

    __slots__ = ("names",)

    def __init__(self, names: frozenset[str] = frozenset()) -> None:
        self.names = names

    def __repr__(self) -> str:
        return f"<Revoked {len(self.names)} names>"


def names_of(principal: Principal, jti: object = None) -> frozenset[str]:
    """Everything by which this credential may be revoked."""
    names = {f"user:{principal.tenant}/{principal.subject}"}
    if principal.key:
        names.add(f"key:{principal.key}")
    if isinstance(jti, str):
        names.add(f"jti:{jti}")
    return frozenset(names)


def is_name(text: str) -> bool:
    kind, _, value = text.partition(":")
    printable = len(text) <= MAX_CHARS and text.isprintable()
    return kind in _KINDS and bool(value) and printable and (kind != "user" or "/" in value)


def read_file(path: str | None) -> frozenset[str]:
    """One name in each line; `#` begins a comment. Raises ConfigError."""
    if path is None:
        return frozenset()
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the revocations in {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        if line and not is_name(line):
            raise ConfigError(
                f"{path}, line {number}: expected `key:ID`, `jti:ID` or `user:TENANT/USER`"
            )
    names = frozenset(filter(None, lines))
    if len(names) > MAX_REVOKED:
        raise ConfigError(f"{path}: more than {MAX_REVOKED} revocations")
    return names
