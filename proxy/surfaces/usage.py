"""Usage, found in an answer without reading all of it. Pure."""

from __future__ import annotations

import re
from typing import Any

import orjson

# Inside a JSON string the quotes would be escaped, so this finds only a real member.
_USAGE = re.compile(rb'"usage"\s*:\s*(\{(?:[^{}]|\{[^{}]*\})*\})')


def usage_in(body: bytes) -> dict[str, Any] | None:
    """The last `usage` object in a JSON answer."""
    found = _USAGE.findall(body)
    if not found:
        return None
    try:
        usage = orjson.loads(found[-1])
    except orjson.JSONDecodeError:
        return None
    return usage if isinstance(usage, dict) else None
