"""Who asks for a replica, as far as the choice and the waiting for one depend on it."""

from __future__ import annotations

from typing import NamedTuple


class Claim(NamedTuple):
    """`tenant` shares what is scarce with others, `priority` is the caller's (the lowest first),
    `size` what the request keeps in memory, in bytes; `session` is the client's word for what its
    requests have in common (empty: it has none)."""

    tenant: str = ""
    priority: int = 0
    size: int = 0
    session: str = ""


NOBODY = Claim()
