"""YAML text to plain values, strictly: no key twice, and `no`, `off` or `12:30` are text.

The scalars are those of YAML 1.2's core schema (section 10.3) without octal and hexadecimal
numbers; anchors, aliases and merge keys work.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

from core.errors import ConfigError

_SCALARS = (
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:int", r"[-+]?(?:0|[1-9][0-9_]{0,17})", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:merge", r"<<", "<"),
)


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars above; remembers keys that were written twice."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.faults: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        first: dict[str, int] = {}
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            line = key.start_mark.line + 1
            if key.value in first:
                self.faults.append(
                    f"line {line}: the key `{key.value}` was already given on line "
                    f"{first[key.value]}"
                )
            first.setdefault(key.value, line)
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), list(_first))


def parse(text: str) -> object:
    """The one document in `text`. Raises ConfigError that names the line of each fault."""
    try:
        loader = _Loader(text)
        try:
            document: object = loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(f"{place}not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"not valid YAML: {' '.join(str(error).split())}") from error
    except (
        RecursionError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
    ) as error:  # PyYAML's own
        raise ConfigError(f"not usable as YAML: {error}") from error
    if loader.faults:
        raise ConfigError("\n".join(loader.faults))
    return document
