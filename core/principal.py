"""Who is calling, as the rest of the gateway needs to know it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Quota(NamedTuple):
    """A caller's own figures for a rule of the limits: `limit` flows in per window of the rule (of
    streams: how many at once), `burst` is the size of the bucket (None: as large as `limit`)."""

    limit: int
    burst: int | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller after authentication.

    `tenant` owns limits and cache isolation, `subject` names the user inside the tenant, `tier`
    selects limits, `models` are the allowed model names (None: all). `organisation` is what
    several tenants may belong to, `key` the credential where it has a name of its own. `limits`
    are pairs of a rule's name and what holds for this caller instead. `groups` are what rules of
    access may ask for. `priority`: of its requests among those that wait at a replica, the lowest
    first.
    """

    tenant: str
    subject: str = ""
    tier: str = ""
    models: frozenset[str] | None = None
    organisation: str = ""
    key: str = ""
    limits: tuple[tuple[str, Quota], ...] = ()
    groups: frozenset[str] = frozenset()
    priority: int = 0

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models
