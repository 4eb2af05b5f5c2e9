"""Which callers may share the engines' prefix caches. Pure."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter

from core.principal import Principal
from routing.config import ShareCache

_DIGITS = 32
# No text in UTF-8 has these bytes, so that no tenant is ever named like a group.
_GROUP, _ORGANISATION = b"\xff", b"\xfe"


class CacheSalts:
    """The `cache_salt` of each caller: an HMAC by `secret` of whom it shares caches with. Empty
    without a secret: all share."""

    def __init__(self, secret: str, share: ShareCache = "tenant") -> None:
        self._share = share
        key = secret.encode("utf-8")

        @lru_cache(maxsize=4096)
        def salt(owner: str | bytes) -> str:
            if not key:
                return ""
            data = owner if isinstance(owner, bytes) else owner.encode("utf-8")
            return hmac.new(key, data, hashlib.sha256).hexdigest()[:_DIGITS]

        self._salt = salt
        self._owner = _owner_by(share)

    def __repr__(self) -> str:
        return f"<CacheSalts {self._share!r}>"

    def of(self, principal: Principal) -> str:
        return self._salt(self._owner(principal))


def _owner_by(share: ShareCache) -> Callable[[Principal], str | bytes]:
    """Who owns a caller's cached prefixes: a tenant, as text, or what several belong to."""
    if share == "tenant":
        return attrgetter("tenant")
    if share == "organisation":
        return _organisation_or_tenant
    # Of all names: who joins a group learns nothing of what was cached before.
    groups = {
        tenant: _GROUP + _GROUP.join(sorted(name.encode("utf-8") for name in group))
        for group in share
        for tenant in group
    }
    return lambda principal: groups.get(principal.tenant, principal.tenant)


def _organisation_or_tenant(principal: Principal) -> str | bytes:
    if principal.organisation:
        return _ORGANISATION + principal.organisation.encode("utf-8")
    return principal.tenant
