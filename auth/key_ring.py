"""The API keys that are accepted, from the configuration and from a file of their own. Pure but for
the reading of that file."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from auth.api_key import digest_of, is_key
from auth.key_config import ApiKeyConfig, ApiKeysConfig
from auth.token import TokenRefused
from core.errors import ConfigError
from core.loading import load
from core.principal import Principal, Quota
from core.section import Section


class KeyFile(Section):
    """A file of API keys: a list `keys`, as in the configuration."""

    keys: tuple[ApiKeyConfig, ...] = ()


class _Entry(NamedTuple):
    digest: bytes
    principal: Principal
    expires_at: float | None


class KeyRing:
    """All keys, looked up by hash. Immutable."""

    __slots__ = ("_by_digest",)

    def __init__(self, keys: Iterable[ApiKeyConfig] = ()) -> None:
        """Raises ConfigError when an id or a hash is there twice."""
        self._by_digest: dict[bytes, _Entry] = {}
        ids: set[str] = set()
        for key in keys:
            if key.id in ids:
                raise ConfigError(f"the API key `{key.id}` is given twice; give each its own `id`")
            ids.add(key.id)
            entry = _Entry(bytes.fromhex(key.sha256), _principal(key), key.expires_at)
            same = self._by_digest.setdefault(entry.digest, entry)
            if same is not entry:
                raise ConfigError(
                    f"the API keys `{same.principal.key}` and `{key.id}` have the same `sha256`"
                )

    def __repr__(self) -> str:
        return f"<KeyRing {len(self._by_digest)} keys>"

    @classmethod
    def load(cls, config: ApiKeysConfig | None) -> KeyRing:
        """Those of the section and of its file. Raises ConfigError."""
        if config is None:
            return cls()
        written = config.keys
        if config.file is not None:
            try:
                written += load(config.file, KeyFile).keys
            except ConfigError as error:
                lines = str(error).splitlines()
                raise ConfigError("\n".join(f"{config.file}: {line}" for line in lines)) from error
        return cls(written)

    def ids(self) -> set[str]:
        return {entry.principal.key for entry in self._by_digest.values()}

    def quotas(self) -> Iterator[tuple[str, str]]:
        """Each key's id with each rule of the limits that it has figures of its own for."""
        for entry in self._by_digest.values():
            for rule, _ in entry.principal.limits:
                yield entry.principal.key, rule

    def find(self, key: bytes, now: float) -> Principal:
        """Whose key it is. `now`: wall clock, Unix seconds. Raises TokenRefused."""
        digest = digest_of(key)
        entry = self._by_digest.get(digest)
        if entry is None or not hmac.compare_digest(entry.digest, digest):
            # The checksum costs more than the hash: only for whoever has to look for the fault.
            raise TokenRefused("unknown API key" if is_key(key) else "mistyped API key")
        if entry.expires_at is not None and now >= entry.expires_at:
            raise TokenRefused("API key expired")
        return entry.principal


def _principal(key: ApiKeyConfig) -> Principal:
    return Principal(
        tenant=key.tenant,
        subject=key.user,
        tier=key.tier,
        models=None if key.models is None else frozenset(key.models),
        organisation=key.organisation,
        key=key.id,
        limits=tuple((name, Quota(own.limit, own.burst)) for name, own in key.limits.items()),
        groups=frozenset(key.groups),
        priority=key.priority,
    )
