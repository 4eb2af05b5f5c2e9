"""Who is calling, as the rest of the gateway needs to know it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller after authentication.

    `tenant` owns limits and cache isolation, `subject` names the user or key inside the tenant,
    `tier` selects limits, `models` are the allowed model names (None: all).
    """

    tenant: str
    subject: str = ""
    tier: str = ""
    models: frozenset[str] | None = None

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models
