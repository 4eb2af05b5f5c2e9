"""The shared list of revocations: what gateways follow, and the command `revoke`."""

from __future__ import annotations

import argparse
import sys

from auth.key_ring import KeyRing
from auth.revocation import is_name
from auth.revocation_watch import Listed, ListUnavailable
from core.describe import did_you_mean
from core.errors import ConfigError
from proxy.serve.config import Config, load_config
from proxy.serve.supervise.supervisor import say
from ratelimit.config import RedisConfig
from ratelimit.redis_inspect import CannotAsk
from ratelimit.redis_names import RedisNames

LIST = "revoked"
DAY_S = 86_400.0
EXIT_NO_STORE = 1


class SharedRevocations:
    """The list in the Redis of the limits."""

    def __init__(self, config: RedisConfig) -> None:
        self._names = RedisNames(config, LIST)

    def __repr__(self) -> str:
        return f"<SharedRevocations {self._names!r}>"

    def read(self, version: int | None) -> Listed | None:
        """See `RevocationList`."""
        try:
            found = self._names.read(version)
        except CannotAsk as error:
            raise ListUnavailable(str(error)) from error
        return None if found is None else Listed(*found)


def shared_revocations(config: Config) -> SharedRevocations | None:
    """The list that the configuration asks to follow, if it does."""
    redis = config.limits_redis
    if config.auth == "none" or not config.auth.revocations.redis or redis is None:
        return None
    return SharedRevocations(redis)


def _unknown(config: Config, name: str) -> str | None:
    """A sentence, where `name` is an API key that no credential can have here."""
    kind, _, key = name.partition(":")
    if kind != "key" or config.auth == "none":
        return None
    try:
        ids = KeyRing.load(config.auth.api_keys).ids()
    except ConfigError:  # a file of keys that cannot be read is no reason not to revoke
        return None
    if key in ids:
        return None
    return f"no API key of this configuration is named `{key}`{did_you_mean(key, ids)}"


def revoke(arguments: argparse.Namespace) -> int:
    """Revoke a credential at all gateways, or allow it again. Raises ConfigError."""
    config = load_config(arguments.config)
    name = arguments.name
    if not is_name(name):
        raise ConfigError("NAME: expected `key:ID`, `jti:ID` or `user:TENANT/USER`")
    if not arguments.days > 0:
        raise ConfigError("--days: expected more than 0")
    redis = config.limits_redis
    if redis is None or shared_revocations(config) is None:
        raise ConfigError(
            "$.auth.revocations.redis: gateways follow no shared list; set it to true (with "
            "`limits.store.redis`), or write the name into `auth.revocations.file` on each host"
        )
    if (warning := _unknown(config, name)) and not arguments.undo:
        say(warning)
    names = RedisNames(redis, LIST)
    try:
        if arguments.undo:
            names.remove(name)
        else:
            names.add(name, arguments.days * DAY_S)
    except CannotAsk as error:
        say(f"$.limits.store.redis: the list of revocations cannot be changed: {error}")
        return EXIT_NO_STORE
    finally:
        names.close()
    done = "allowed again" if arguments.undo else f"revoked for {arguments.days:g} days"
    sys.stdout.write(f"OK: {name}: {done}; gateways know within a second\n")
    return 0
