"""The command `key`: credentials, made for the operator."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import yaml

from auth.api_key import ENTROPY_BYTES, digest_of, make_key
from auth.key_config import ApiKeyConfig
from core.errors import ConfigError
from core.loading import convert


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
        "models": arguments.model,
        "expires_at": arguments.expires,
    }
    entry = {name: value for name, value in entry.items() if value is not None}
    try:
        config = convert(entry, ApiKeyConfig, os.getcwd())
    except ConfigError as error:
        raise ConfigError(str(error).replace("$.expires_at", "--expires")) from error
    if config.expires_at is not None and config.expires_at <= time.time():
        raise ConfigError(f"--expires: {arguments.expires} is over; give an instant to come")
    text = yaml.safe_dump([entry], sort_keys=False, allow_unicode=True)
    sys.stderr.write(f"# The key; it is not shown again:\n{made}\n")
    sys.stdout.write(text)
    return 0
