"""The command `key`: credentials, made for the operator."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from typing import Any

import yaml

from auth.api_key import ENTROPY_BYTES, digest_of, make_key
from auth.key_config import ApiKeyConfig
from core.errors import ConfigError
from core.loading import convert

_OPTIONS = {"expires_at": "expires", "models": "model", "groups": "group", "limits": "limit"}
_match_path = re.compile(r"^\$\.(\w+)", re.MULTILINE)
_match_limit = re.compile(r"(.+)=(\d{1,12})(?::(\d{1,12}))?").fullmatch


def key(arguments: argparse.Namespace) -> int:
    """Make an API key. It is shown once, on stderr, so that the entry on stdout, which holds only
    its hash, can go straight into a file. Raises ConfigError for an entry that would not be
    accepted or has expired already."""
    made = make_key(os.urandom(ENTROPY_BYTES))
    sha256 = digest_of(made.encode("ascii")).hex()
    entry: dict[str, Any] = {
        "id": arguments.id or f"{arguments.tenant}-{sha256[:8]}",
        "sha256": sha256,
        "tenant": arguments.tenant,
        "user": arguments.user,
        "tier": arguments.tier,
        "organisation": arguments.organisation,
        "groups": arguments.group,
        "models": arguments.model,
        "limits": dict(map(_limit, arguments.limit)) or None,
        "priority": arguments.priority,
        "expires_at": arguments.expires,
    }
    entry = {name: value for name, value in entry.items() if value is not None}
    try:
        config = convert(entry, ApiKeyConfig, os.getcwd())
    except ConfigError as error:
        raise ConfigError(_match_path.sub(_option, str(error))) from error
    if config.expires_at is not None and config.expires_at <= time.time():
        raise ConfigError(f"--expires: {arguments.expires} is over; give an instant to come")
    text = yaml.safe_dump([entry], sort_keys=False, allow_unicode=True)
    sys.stderr.write(f"# The key; it is not shown again:\n{made}\n")
    sys.stdout.write(text)
    return 0


def _limit(text: str) -> tuple[str, dict[str, int]]:
    """A rule's name and the key's own figures for it, from `RULE=LIMIT` or `RULE=LIMIT:BURST`.
    Raises ConfigError."""
    found = _match_limit(text)
    if found is None:
        raise ConfigError(
            f"--limit: expected RULE=LIMIT or RULE=LIMIT:BURST in whole numbers, got {text[:64]!r}"
        )
    name, limit, burst = found.groups()
    return name, {"limit": int(limit)} | ({} if burst is None else {"burst": int(burst)})


def _option(path: re.Match[str]) -> str:
    """What was written on the command line, instead of where the entry has it."""
    name = path[1]
    return f"--{_OPTIONS.get(name, name)}"
