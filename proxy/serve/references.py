"""What the configuration points at: are its files and secrets there?"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from core.errors import ConfigError
from core.section import FilePath, OutputPath, Secret
from proxy.config import AccessTarget, UsageFile


def missing_references(section: object, path: str = "$") -> Iterator[str]:
    """One line for each file that cannot be read or written and each secret that cannot be
    revealed."""
    if isinstance(section, Secret):
        try:
            section.reveal()
        except ConfigError as error:
            yield f"{path}: {error}"
    elif isinstance(section, AccessTarget | UsageFile):
        if "/" in section and (fault := _unwritable(section)):
            yield f"{path}: {fault}"
    elif isinstance(section, FilePath):
        if not isinstance(section, OutputPath) and (fault := _unreadable(section)):
            yield f"{path}: {fault}"
    elif isinstance(section, msgspec.Struct):
        for name in section.__struct_fields__:
            yield from missing_references(getattr(section, name), f"{path}.{name}")
    elif isinstance(section, (tuple, list)):
        for index, item in enumerate(section):
            yield from missing_references(item, f"{path}[{index}]")
    elif isinstance(section, dict):
        for key, value in section.items():
            yield from missing_references(value, f"{path}.{key}")


def referenced_files(section: object) -> Iterator[str]:
    """The files that are read for this configuration, in no order."""
    if isinstance(section, Secret):
        if section.path is not None:
            yield section.path
    elif isinstance(section, FilePath):
        if not isinstance(section, OutputPath):
            yield str(section)  # plain text, which can be sent
    elif isinstance(section, msgspec.Struct):
        for name in section.__struct_fields__:
            yield from referenced_files(getattr(section, name))
    elif isinstance(section, (tuple, list)):
        for item in section:
            yield from referenced_files(item)
    elif isinstance(section, dict):
        for item in section.values():
            yield from referenced_files(item)


def _unreadable(path: FilePath) -> str | None:
    if not os.path.exists(path):
        return f"there is no file {path}"
    return None if os.access(path, os.R_OK) else f"the file {path} may not be read by this user"


def _unwritable(path: str) -> str | None:
    folder = os.path.dirname(path)
    if os.path.isdir(path):
        return f"{path} is a folder"
    if not os.path.isdir(folder):
        return f"there is no folder {folder}"
    place = path if os.path.exists(path) else folder
    return None if os.access(place, os.W_OK) else f"{path} may not be written by this user"
