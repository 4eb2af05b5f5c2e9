"""The base of every configuration section, and the value types that sections share."""

from __future__ import annotations

import msgspec


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A strict, immutable piece of the configuration.

    A `__post_init__` that finds contradicting values raises ValueError with one clear sentence;
    the loader puts the path of the section before it.
    """


class Secret:
    """A reference to a secret, `file:PATH` or `env:NAME`; never the secret itself."""


class FilePath(str):
    """A path in the configuration, absolute: relative ones start at the configuration file."""
