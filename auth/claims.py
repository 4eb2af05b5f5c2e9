"""Verified claims to a principal. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeGuard

from auth.config import ClaimsConfig
from auth.key_config import MAX_NAME_CHARS, MAX_PRIORITY
from auth.token import TokenRefused
from core.principal import Principal, Quota

MAX_NAMES = 1024
MAX_LIMITS = 32
MAX_LIMIT = 1_000_000_000

_split_names = re.compile(r"[\s,]+").split
_NOT_THERE = object()


def principal_of(claims: dict[str, Any], mapping: ClaimsConfig) -> Principal:
    """Raises TokenRefused when no tenant is named, or a mapped claim is not what it should be."""
    tenant = _name(claims, mapping.tenant)
    if not tenant and mapping.tenant_fallback is not None:
        tenant = _name(claims, mapping.tenant_fallback)
    if not tenant:
        raise TokenRefused("names no tenant")
    return Principal(
        tenant=mapping.tenant_prefix + tenant,
        subject=_name(claims, mapping.subject),
        tier=_optional(claims, mapping.tier),
        models=_models(claims, mapping),
        organisation=_optional(claims, mapping.organisation),
        groups=_list(claims, mapping.groups) or frozenset(),
        limits=_limits(claims, mapping.limits),
        priority=_priority(claims, mapping.priority),
    )


def check_required(claims: dict[str, Any], paths: Iterable[str]) -> None:
    """Raises TokenRefused when a claim is not there, or null."""
    for path in paths:
        if _look_up(claims, path) in (_NOT_THERE, None):
            raise TokenRefused(f"no claim {path}")


def _look_up(claims: dict[str, Any], path: str) -> object:
    if path in claims:
        return claims[path]
    value: object = claims
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            return _NOT_THERE
        value = value[part]
    return value


def _name(claims: dict[str, Any], path: str) -> str:
    """A short printable text, or a number as text; empty when the claim is not there."""
    value = _look_up(claims, path)
    if value is _NOT_THERE or value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and len(value) <= MAX_NAME_CHARS and value.isprintable():
        return value
    raise TokenRefused(f"{path} is not a name")


def _optional(claims: dict[str, Any], path: str | None) -> str:
    return "" if path is None else _name(claims, path)


def _models(claims: dict[str, Any], mapping: ClaimsConfig) -> frozenset[str] | None:
    found = _list(claims, mapping.models)
    if found is None and mapping.models is not None and mapping.models_when_absent == "none":
        return frozenset()
    return found


def _list(claims: dict[str, Any], path: str | None) -> frozenset[str] | None:
    """A list of names, or names in one text with spaces or commas between (as `scope`). None when
    the claim is not there."""
    value = _NOT_THERE if path is None else _look_up(claims, path)
    if value is _NOT_THERE:
        return None
    names = _split_names(value) if isinstance(value, str) else value
    if not isinstance(names, list) or len(names) > MAX_NAMES:
        raise TokenRefused(f"{path} is not a list of names")
    if not all(isinstance(name, str) and len(name) <= MAX_NAME_CHARS for name in names):
        raise TokenRefused(f"{path} is not a list of names")
    return frozenset(name for name in names if name)


def _priority(claims: dict[str, Any], path: str | None) -> int:
    value = _NOT_THERE if path is None else _look_up(claims, path)
    if value is _NOT_THERE or value is None:
        return 0
    if type(value) is int and -MAX_PRIORITY <= value <= MAX_PRIORITY:
        return value
    raise TokenRefused(f"{path} is not a priority from -{MAX_PRIORITY} to {MAX_PRIORITY}")


def _limits(claims: dict[str, Any], path: str | None) -> tuple[tuple[str, Quota], ...]:
    """Own figures for rules of the limits: `{"requests": 100, "tokens": {"limit": 5, "burst": 9}}`.
    Names that no rule has mean nothing."""
    value = _NOT_THERE if path is None else _look_up(claims, path)
    if value is _NOT_THERE or value is None:
        return ()
    if not isinstance(value, dict) or len(value) > MAX_LIMITS:
        raise TokenRefused(f"{path} is not an object of limits")
    return tuple(sorted((name, _quota(own, path)) for name, own in value.items()))


def _quota(value: object, path: str | None) -> Quota:
    figures = value if isinstance(value, dict) else {"limit": value}
    limit, burst = figures.get("limit"), figures.get("burst")
    if set(figures) <= {"limit", "burst"} and _is_count(limit):
        if burst is None:
            return Quota(limit)
        if _is_count(burst):
            return Quota(limit, burst)
    raise TokenRefused(f"{path} is not an object of limits")


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= MAX_LIMIT
