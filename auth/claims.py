"""Verified claims to a principal. Pure."""

from __future__ import annotations

import re
from typing import Any

from auth.config import ClaimsConfig
from auth.key_config import MAX_NAME_CHARS
from auth.token import TokenRefused
from core.principal import Principal

MAX_NAMES = 1024

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
    )


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
