"""The words of configuration errors: what was expected, what was got, what may have been meant."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import inspect

_LONGEST = 80


def describe(info: inspect.Type) -> str:
    """What a value of this type looks like, as words that follow "expected"."""
    if words := _WORDS.get(type(info)):
        return words(info)
    limits = limits_of(info)
    kind = _KINDS.get(type(info), "a value")
    if isinstance(info, inspect.CollectionType):
        kind = f"a list (each entry {describe(info.item_type)})"
    return f"{kind} of {limits}" if limits and info_has_length(info) else f"{kind} {limits}".strip()


def _one_of(values: Iterable[object]) -> str:
    return " or ".join(f"`{value}`" for value in values)


def _union(info: inspect.UnionType) -> str:
    members = [member for member in info.types if not isinstance(member, inspect.NoneType)]
    return " or ".join(describe(member) for member in members)


def _text(info: inspect.StrType) -> str:
    if info.pattern is not None:
        return f"text that matches {info.pattern}"
    limits = limits_of(info)
    return f"text of {limits}" if limits else "text"


_KINDS: dict[type, str] = {
    inspect.BoolType: "`true` or `false`",
    inspect.IntType: "an integer",
    inspect.FloatType: "a number",
    inspect.NoneType: "nothing",
    inspect.DictType: "a mapping",
    inspect.AnyType: "anything",
}

_WORDS: dict[type, Callable[[Any], str]] = {
    inspect.Metadata: lambda info: describe(info.type),
    inspect.StructType: lambda info: f"a mapping with {', '.join(_names(info))}",
    inspect.UnionType: _union,
    inspect.LiteralType: lambda info: _one_of(info.values),
    inspect.EnumType: lambda info: _one_of(member.value for member in info.cls),
    inspect.CustomType: lambda info: str(getattr(info.cls, "expected", "text")),
    inspect.StrType: _text,
}


def _names(info: inspect.StructType) -> list[str]:
    return [f"`{field.encode_name}`" for field in info.fields]


def info_has_length(info: inspect.Type) -> bool:
    """Whether constraints are about a length and not about a value."""
    return hasattr(info, "min_length")


def limits_of(info: Any) -> str:
    """The constraints of a number, or of the length of text or a collection; empty if none."""
    if info_has_length(info):
        unit = "character" if isinstance(info, inspect.StrType) else "entry"
        low, high = info.min_length, info.max_length
        words = [f"at least {low}"] * (low is not None) + [f"at most {high}"] * (high is not None)
        return f"{' and '.join(words)} {_plural(unit, high or low)}" if words else ""
    if info_is_range(info):
        return f"between {info.ge} and {info.le}"
    bounds = [
        ("above", getattr(info, "gt", None)),
        ("of at least", getattr(info, "ge", None)),
        ("below", getattr(info, "lt", None)),
        ("of at most", getattr(info, "le", None)),
        ("that is a multiple of", getattr(info, "multiple_of", None)),
    ]
    return " and ".join(f"{name} {bound}" for name, bound in bounds if bound is not None)


def info_is_range(info: Any) -> bool:
    return getattr(info, "ge", None) is not None and getattr(info, "le", None) is not None


def counted(number: int, one: str, many: str = "") -> str:
    """As in `1 worker`, `2 workers`. `many`: where it is not `one` and an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def _plural(unit: str, count: int) -> str:
    if count == 1:
        return unit
    return unit[:-1] + "ies" if unit.endswith("y") else unit + "s"


def show(node: object) -> str:
    """A value from the document, short, and without the contents of mappings and lists."""
    match node:
        case None:
            return "nothing"
        case bool():
            return f"`{str(node).lower()}`"
        case str():
            text = node if len(node) <= _LONGEST else node[:_LONGEST] + "..."
            return '"' + text.encode("unicode_escape").decode("ascii") + '"'
        case dict():
            keys = ", ".join(f"`{str(key)[:_LONGEST]}`" for key in list(node)[:6])
            return f"a mapping with {keys}" if keys else "an empty mapping"
        case list():
            return f"a list of {len(node)}" if node else "an empty list"
    return repr(node)[:_LONGEST]


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """`; did you mean ...?` when an option is near, otherwise nothing."""
    known = list(dict.fromkeys(options))
    by_lower = {option.lower(): option for option in known}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean `{by_lower[near[0]]}`?" if near else ""
