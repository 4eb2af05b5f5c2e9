"""Which replica each session was sent to last. Pure.

A hint only: it is worth a fraction of a second, and nothing once the replica cannot take requests.
"""

from __future__ import annotations

from collections import OrderedDict

from xxhash import xxh3_64_intdigest

from core.claim import Claim


class Sessions:
    """The `most` sessions that were used last. Those of different tenants are never the same."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._last: OrderedDict[int, str] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Sessions {len(self._last)} of {self._most}>"

    def __len__(self) -> int:
        return len(self._last)

    def last(self, claim: Claim) -> str | None:
        """The id of the replica that this session was sent to last."""
        return self._last.get(_key(claim)) if claim.session else None

    def note(self, claim: Claim, replica_id: str) -> None:
        if claim.session:
            key = _key(claim)
            self._last[key] = replica_id
            self._last.move_to_end(key)
            if len(self._last) > self._most:
                self._last.popitem(last=False)


def _key(claim: Claim) -> int:
    tenant = claim.tenant.encode("utf-8", "surrogatepass")
    session = claim.session.encode("utf-8", "surrogatepass")
    return xxh3_64_intdigest(session, xxh3_64_intdigest(tenant))
