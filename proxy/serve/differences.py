"""What differs between two configurations, for people."""

from __future__ import annotations

import msgspec

DEEPEST = 3


def differences(old: object, new: object, path: str = "$", depth: int = DEEPEST) -> list[str]:
    """The paths of settings that differ, down to `depth` names; no values, as they may be long."""
    if old == new:
        return []
    if depth == 0 or not isinstance(old, msgspec.Struct) or type(old) is not type(new):
        return [path]
    found = []
    for name in old.__struct_fields__:
        below = getattr(old, name), getattr(new, name)
        found += differences(*below, f"{path}.{name}", depth - 1)
    return found
