"""Who may use which model, beyond what a credential itself says. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from auth.config import AccessRule
from core.principal import Principal


class Access:
    """The rules about models. One that no rule concerns is open to all; any other one is open to
    those whom one of its rules lets in."""

    def __init__(self, rules: Sequence[AccessRule]) -> None:
        self._rules = tuple(rules)
        # Where no rule names a route, one look stands for all routes.
        self._routes = {route for rule in rules for route in rule.routes} | {""}

    def __repr__(self) -> str:
        return f"<Access {len(self._rules)} rules>"

    def missing(self, principal: Principal, names: Collection[str], route: str) -> str | None:
        """What keeps `principal` from using the model with these `names` at `route`, in words for
        the client: its own lack, and never who else there is. None: nothing does."""
        rules = [rule for rule in self._rules if _concerns(rule, names, route)]
        lacks = []
        for rule in rules:
            lack = _lack(rule, principal)
            if not lack:
                return None
            lacks.append(" and ".join(lack))
        return ", or ".join(dict.fromkeys(lacks)) or None

    def shows(self, principal: Principal, names: Collection[str]) -> bool:
        """Whether the model can be used at any route."""
        return any(self.missing(principal, names, route) is None for route in self._routes)


def _concerns(rule: AccessRule, names: Collection[str], route: str) -> bool:
    if rule.models and not any(name in rule.models for name in names):
        return False
    return not rule.routes or route in rule.routes


def _lack(rule: AccessRule, principal: Principal) -> list[str]:
    lack = []
    if rule.tenants and principal.tenant not in rule.tenants:
        lack.append("a tenant that it is open to")
    if rule.tiers and principal.tier not in rule.tiers:
        lack.append(f"the tier {' or '.join(rule.tiers)}")
    if rule.groups and not principal.groups.intersection(rule.groups):
        lack.append(f"the group {' or '.join(rule.groups)}")
    return lack
