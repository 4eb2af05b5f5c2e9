"""Replicas that are listed beside the configuration file, and those that are drained. Pure.

Both become part of the one text that the supervisor sends to all processes, so these agree by what
makes them agree about every other setting.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from backend.config import ReplicaConfig
from core import document
from core.errors import ConfigError
from core.loading import ConfigProblems, convert
from core.section import Section


class ReplicasFile(Section):
    """A file with further replicas, in the form of the configuration's own."""

    replicas: tuple[ReplicaConfig, ...] = ()


def merged(
    text: bytes, base: str, listed: tuple[str, bytes] | None, drained: Collection[str]
) -> bytes:
    """The configuration `text` with the replicas of the file `listed` (path and content), those
    whose ids are `drained` marked so. Relative paths start at `base`. Raises ConfigError."""
    whole: Any = document.parse(text.decode("utf-8"))
    entries = [*(whole.get("replicas") or ())]
    if listed is not None:
        entries += _listed(*listed, base)
    if drained:
        entries = [_marked(entry, base, drained) for entry in entries]
    # JSON is YAML too.
    return json.dumps({**whole, "replicas": entries}, ensure_ascii=False).encode("utf-8")


def _listed(path: str, content: bytes, base: str) -> list[Any]:
    try:
        node: Any = document.parse(content.decode("utf-8"))
        convert(node, ReplicasFile, base)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text") from error
    except ConfigProblems as error:
        lines = [f"{path}: {problem}" for problem in error.problems]
        raise ConfigError("\n".join(lines)) from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return [*node.get("replicas", ())]


def _marked(entry: Any, base: str, drained: Collection[str]) -> Any:
    replica = convert(entry, ReplicaConfig, base).replica
    return {**entry, "drain": True} if replica.id in drained else entry
