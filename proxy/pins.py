"""Which replica holds which stored response, and whose it is. Pure.

A response is stored by the replica that made it, under an id that the gateway chooses: an HMAC in
it tells whose it is, so that any worker of any gateway with the same secret can judge. Where it is
held only the worker knows that relayed it; another one asks each replica.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from typing import Final, NamedTuple

TTL_S: Final = 3600.0
MOST: Final = 10_000
_PREFIX = "resp_"
_DIGITS = 32


class Pin(NamedTuple):
    """Where a response is held. `model` is the name of the replicas' model."""

    replica: str
    model: str
    until: float


class Pins:
    """Of one worker: the newest MOST responses, each for TTL_S after it was made."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._pins: OrderedDict[str, Pin] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Pins {len(self._pins)}>"

    def new_id(self, unique: str, tenant: str) -> str:
        """The id of a response of `tenant`. `unique`: letters and digits that nobody can guess."""
        return f"{_PREFIX}{unique}{self._mark(unique, tenant)}"

    def owned(self, response_id: str, tenant: str) -> bool:
        """Whether that is an id which `tenant` was given."""
        if not response_id.startswith(_PREFIX) or not response_id.isascii():
            return False
        unique, mark = response_id[len(_PREFIX) : -_DIGITS], response_id[-_DIGITS:]
        if not unique.isalnum():  # a blank would be the end of it in what is signed
            return False
        return hmac.compare_digest(mark, self._mark(unique, tenant))

    def note(self, response_id: str, replica: str, model: str, now: float) -> None:
        self._pins[response_id] = Pin(replica, model, now + TTL_S)
        self._pins.move_to_end(response_id)
        if len(self._pins) > MOST:
            self._pins.popitem(last=False)

    def find(self, response_id: str, now: float) -> Pin | None:
        pin = self._pins.get(response_id)
        if pin is not None and pin.until <= now:
            del self._pins[response_id]
            return None
        return pin

    def _mark(self, unique: str, tenant: str) -> str:
        text = f"{unique} {tenant}".encode("utf-8", "surrogatepass")
        return hmac.new(self._secret, b"response " + text, hashlib.sha256).hexdigest()[:_DIGITS]
