"""The commands `limits show` and `limits reset`: a tenant's buckets in the store."""

from __future__ import annotations

import argparse
import json
import sys

from core.describe import counted, did_you_mean
from core.errors import ConfigError
from proxy.serve.config import load_config
from proxy.serve.supervise.supervisor import say
from ratelimit.config import LimitsConfig
from ratelimit.live import document, table
from ratelimit.redis_inspect import MOST_BUCKETS, CannotAsk, Inspector

EXIT_NO_STORE = 1
IN_MEMORY = (
    "with `limits.store: memory` the buckets are in the memory of the running gateway, by hashes "
    "of names, and cannot be listed; keep them in Redis, or restart the gateway to fill them"
)


def limits(arguments: argparse.Namespace) -> int:
    """Exit status 1: the store cannot be asked. Raises ConfigError."""
    config = load_config(arguments.config)
    named = config.named_limits
    if named is None or not named.rules:
        raise ConfigError("$.limits: there are no rules")
    redis = config.limits_redis
    if redis is None:
        say(IN_MEMORY)
        return EXIT_NO_STORE
    inspector = Inspector(redis, named.rules, [model.name for model in config.models])
    try:
        if arguments.action == "reset":
            _check_rule(named, arguments.rule)
            count = inspector.reset(arguments.tenant, arguments.rule)
            sys.stdout.write(f"OK: {arguments.tenant}: {counted(count, 'bucket')} reset\n")
        else:
            _show(inspector, arguments)
    except CannotAsk as error:
        say(str(error))
        return EXIT_NO_STORE
    if inspector.truncated:
        say(f"only {MOST_BUCKETS} of its buckets were looked at")
    return 0


def _check_rule(config: LimitsConfig, name: str | None) -> None:
    names = [rule.name for rule in config.rules]
    if name is not None and name not in names:
        hint = did_you_mean(name, names) or f"; rules: {', '.join(names)}"
        raise ConfigError(f"--rule: no rule is named `{name}`{hint}")


def _show(inspector: Inspector, arguments: argparse.Namespace) -> None:
    lives = inspector.show(arguments.tenant)
    if arguments.json:
        json.dump([document(live) for live in lives], sys.stdout, indent=2)
        sys.stdout.write("\n")
    elif lives:
        sys.stdout.write(table(lives) + "Buckets that are not shown are full.\n")
    else:
        sys.stdout.write(f"{arguments.tenant}: all buckets are full.\n")
