"""Cross-origin requests from browsers (Fetch standard, section 3.2), when configured."""

from __future__ import annotations

from collections.abc import Sequence

from core.exchange import Header, Request

_ALLOWED_METHODS = b"GET, POST, OPTIONS"
_ALLOWED_HEADERS = b"authorization, content-type"
_EXPOSED = (
    b"x-request-id, retry-after, retry-after-ms, x-ratelimit-limit-requests, "
    b"x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, "
    b"x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, ratelimit, ratelimit-policy, "
    b"x-headrace-limits, x-headrace-model, x-headrace-fallback"
)


class Cors:
    """Which origins may read our answers. No origins: no CORS headers at all."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origin.encode("ascii") for origin in origins)
        self._any = b"*" in self._origins

    def __repr__(self) -> str:
        return f"<Cors origins={sorted(self._origins)}>"

    def headers(self, request: Request) -> list[Header]:
        """Headers for the answer to `request`; empty when its origin may not read it."""
        origin = request.header(b"origin") if self._origins else None
        if origin is None or not (self._any or origin in self._origins):
            return []
        allowed = b"*" if self._any else origin
        return [
            (b"access-control-allow-origin", allowed),
            (b"access-control-expose-headers", _EXPOSED),
            (b"vary", b"origin"),
        ]

    def preflight(self, request: Request) -> list[Header] | None:
        """Headers of a preflight's answer, or None when `request` is not one we allow."""
        if request.header(b"access-control-request-method") is None:
            return None
        allowed = self.headers(request)
        if not allowed:
            return None
        asked = request.header(b"access-control-request-headers")
        return [
            *allowed,
            (b"access-control-allow-methods", _ALLOWED_METHODS),
            (b"access-control-allow-headers", _listed(asked) or _ALLOWED_HEADERS),
            (b"access-control-max-age", b"600"),
        ]


def _listed(asked: bytes | None) -> bytes | None:
    """The asked-for header names, if they are only names: `*` does not cover authorization."""
    if asked is None or len(asked) > 1024:
        return None
    names = [name.strip().lower() for name in asked.split(b",")]
    plain = all(name and name.replace(b"-", b"").isalnum() for name in names)
    return b", ".join(names) if plain else None
