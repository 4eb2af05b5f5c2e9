"""Is a parsed JSON value too much work for the event loop's thread? Pure."""

from __future__ import annotations

# Work per value beside its text, in bytes of text that take as long to render and encode.
_PER_FIELD = 64
_PER_ITEM = 16


def exceeds(value: object, limit: int) -> bool:
    """Whether `value` weighs more than `limit`. Looks at no more of it than `limit` allows."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            limit -= len(item)
        elif isinstance(item, dict):
            limit -= _PER_FIELD * len(item)
            if limit >= 0:
                pending.extend(item.values())
        elif isinstance(item, list | tuple):
            limit -= _PER_ITEM * len(item)
            if limit >= 0:
                pending.extend(item)
        if limit < 0:
            return True
    return False
