"""What a piece of configuration amounts to, together with the files and secrets it points at.

Two identities are equal when nothing has changed in between, so that what was built from the one
serves for the other. Files are told apart by where they are and when they were written: a link
that was switched to another file, as Kubernetes does it, is a change.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable

import msgspec

from core.section import FilePath, OutputPath, Secret


def identity(section: object) -> Hashable:
    """Of a section, or of tuples and mappings of them. Secrets are there as digests.

    Take it before reading the files: what changes while they are read then counts as a change the
    next time. Raises ConfigError for a secret that cannot be revealed.
    """
    if isinstance(section, Secret):
        return "secret", hashlib.sha256(section.reveal().encode()).digest()
    if isinstance(section, FilePath) and not isinstance(section, OutputPath):
        return str(section), file_identity(section)
    if isinstance(section, msgspec.Struct):
        values = [identity(getattr(section, name)) for name in section.__struct_fields__]
        return type(section).__name__, *values
    if isinstance(section, tuple | list):
        return tuple([identity(item) for item in section])
    if isinstance(section, dict):
        return tuple([(key, identity(value)) for key, value in section.items()])
    assert isinstance(section, Hashable), section
    return section


def file_identity(path: str) -> Hashable:
    """Which file `path` is at the moment, and as it was last written; None when there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
