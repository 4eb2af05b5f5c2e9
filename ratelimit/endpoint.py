"""Where a Redis is, read from its URL. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

_FORMS = "redis://host:6379/0, rediss://host:6380/0 or unix:///path?db=0"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address: `path` of a Unix socket, or else `host` and `port`."""

    host: str
    port: int
    path: str
    tls: bool
    username: str
    db: int

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}"


def parse(url: str) -> Endpoint:
    """Raises ValueError with one sentence; a password in the URL is refused and not repeated."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"`url`: expected {_FORMS}") from None
    if parts.password is not None:
        raise ValueError(
            "`url` must hold no password: give it as `password`, file:PATH or env:NAME"
        )
    username = unquote(parts.username or "")
    if parts.scheme == "unix" and parts.path:
        db = parse_qs(parts.query).get("db", ["0"])[-1]
        return Endpoint("", 0, unquote(parts.path), False, username, _db(db))
    if parts.scheme in ("redis", "rediss") and parts.hostname and not parts.query:
        tls = parts.scheme == "rediss"
        return Endpoint(
            parts.hostname, port or 6379, "", tls, username, _db(parts.path.strip("/") or "0")
        )
    raise ValueError(f"`url`: expected {_FORMS}")


def _db(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise ValueError("`url`: the database is a number, as in redis://host:6379/0")
    return int(text)


def parse_host(text: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port`. Raises ValueError with one sentence."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port or parts.netloc != text or "@" in text:
        raise ValueError("expected host:port")
    return host, port
