"""Are parsed JSON values too much work for the event loop's thread? Pure."""

from __future__ import annotations

from typing import Any

# Work per value beside its text, in bytes of text that take as long to render and encode.
PER_FIELD = 64
PER_ITEM = 16


def exceeds(values: list[Any], limit: int) -> bool:
    """Whether `values`, parsed JSON, weigh more than `limit`. Looks at no more of them than that
    takes; the list is used up."""
    pending = values
    while pending:
        item = pending.pop()
        kind = type(item)
        if kind is str:
            limit -= len(item)
        elif kind is dict:
            limit -= PER_FIELD * len(item)
            if limit >= 0:
                pending.extend(item.values())
        elif kind is list:
            limit -= PER_ITEM * len(item)
            if limit >= 0:
                pending.extend(item)
        if limit < 0:
            return True
    return False
