"""From a document to a tree of sections, reporting every problem and not only the first.

A walk over the types that msgspec sees: each problem names its path (`$.listen.tls`), the value
and what was expected. Values are never shown where a secret was expected.
"""

from __future__ import annotations

import functools
import math
import os
import re
import stat
from collections.abc import Callable, Hashable, Iterable, Sized
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import inspect

from core import document
from core.describe import describe, did_you_mean, limits_of, show
from core.errors import ConfigError
from core.section import Contradictions

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault: the path of the value (`$` is the whole document) and a sentence."""

    path: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.path}: {self.sentence}"


class ConfigProblems(ConfigError):
    """Everything that is wrong with a document; `str()` has one line for each problem."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def load(path: str, section: type[T]) -> T:
    """Read, parse and convert the file at `path`; relative paths in it start at its folder.

    Raises ConfigError with one line for each problem.
    """
    return parse(read(path), path, section)


def read(path: str) -> bytes:
    """The file as it stands. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error


def read_bounded(path: str, most_bytes: int) -> bytes:
    """As `read`, of a plain file: never waits for a writer. Raises ConfigError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise ConfigError(f"{path} is no plain file")
        with open(descriptor, "rb") as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > most_bytes:
        raise ConfigError(f"{path} is larger than {most_bytes} bytes")
    return data


def parse(data: bytes, path: str, section: type[T]) -> T:
    """As `load`, of what was read from `path` before."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration {path} is not UTF-8 text") from error
    return convert(document.parse(text), section, os.path.dirname(os.path.abspath(path)))


def convert(node: object, target: type[T], base: str) -> T:
    """`node` (plain values) as a `target`, with relative paths starting at the folder `base`.

    Raises ConfigProblems.
    """
    walk = _Walk(base)
    value = walk.value(node, _type_info(cast(Hashable, target)), "$")
    if walk.problems:
        raise ConfigProblems(walk.problems)
    return cast(T, value)


def schema(target: type) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a `target` section."""

    def custom(value_type: type) -> dict[str, Any]:
        return dict(getattr(value_type, "schema", {"type": "string"}))

    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **msgspec.json.schema(target, schema_hook=custom),
    }


@functools.cache
def _type_info(target: Hashable) -> inspect.Type:
    """msgspec works it out anew at each call: 2 ms for the whole configuration."""
    return inspect.type_info(target)


class _Fault:
    """Stands for a value that could not be made."""


_FAULT: Final = _Fault()


class _Walk:
    """One conversion: the folder for relative paths and the problems found so far."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.problems: list[Problem] = []

    def __repr__(self) -> str:
        return f"<_Walk base={self.base!r} problems={len(self.problems)}>"

    def value(self, node: object, info: inspect.Type, path: str) -> object:
        """The value for `node`, or _FAULT after noting the problem."""
        maker = _MAKERS.get(type(info))
        if maker is None:
            raise TypeError(f"{path}: {info!r} has no place in a configuration")
        return maker(self, node, info, path)

    def fault(self, path: str, sentence: str) -> _Fault:
        self.problems.append(Problem(path, sentence))
        return _FAULT

    def unexpected(self, node: object, info: inspect.Type, path: str) -> _Fault:
        hint = ""
        if isinstance(info, inspect.StrType) and isinstance(node, (bool, int, float)):
            hint = " (put it in quotes)"
        return self.fault(path, f"expected {describe(info)}, got {show(node)}{hint}")

    def struct(self, node: object, info: inspect.StructType, path: str) -> object:
        if not isinstance(node, dict):
            return self.unexpected(node, info, path)
        before = len(self.problems)
        known = [field.encode_name for field in info.fields]
        tag = {info.tag_field} if info.tag_field else set()
        for key in node:
            if key not in known and key not in tag:
                hint = did_you_mean(str(key), known) or f"; known keys: {', '.join(known)}"
                self.fault(path, f"unknown key `{key}`{hint}")
        given: dict[str, object] = {}
        for field in info.fields:
            if field.encode_name in node:
                below = f"{path}.{field.encode_name}"
                given[field.name] = self.value(node[field.encode_name], field.type, below)
            elif field.required:
                self.fault(path, f"missing key `{field.encode_name}` ({describe(field.type)})")
        if len(self.problems) > before:
            return _FAULT
        try:
            return info.cls(**given)
        except Contradictions as error:
            self.problems += [Problem(path + below, text) for below, text in error.faults]
        except ValueError as error:
            self.fault(path, str(error))
        return _FAULT

    def union(self, node: object, info: inspect.UnionType, path: str) -> object:
        """Let the one member that fits the shape of `node` speak, so that its errors are exact."""
        fitting = [member for member in info.types if _fits(node, member)]
        if isinstance(node, dict) and len(fitting) > 1:
            fitting = [_nearest(node, fitting)]
        for member in fitting:
            before = len(self.problems)
            made = self.value(node, member, path)
            if not isinstance(made, _Fault):
                return made
            if len(fitting) == 1 and not isinstance(member, inspect.LiteralType):
                return made
            del self.problems[before:]
        hint = did_you_mean(node, _words(info)) if isinstance(node, str) else ""
        return self.fault(path, f"expected {describe(info)}, got {show(node)}{hint}")

    def literal(self, node: object, info: inspect.LiteralType, path: str) -> object:
        for value in info.values:
            if type(value) is type(node) and value == node:
                return value
        hint = did_you_mean(node, map(str, info.values)) if isinstance(node, str) else ""
        return self.fault(path, f"expected {describe(info)}, got {show(node)}{hint}")

    def enum(self, node: object, info: inspect.EnumType, path: str) -> object:
        try:
            return info.cls(node)
        except ValueError:
            return self.unexpected(node, info, path)

    def custom(self, node: object, info: inspect.CustomType, path: str) -> object:
        if not isinstance(node, str):
            # What was written is not shown: it may be a secret.
            return self.fault(path, f"expected {describe(info)}, got something that is not text")
        try:
            return cast(Any, info.cls).from_text(node, self.base)
        except ValueError as error:
            return self.fault(path, str(error))

    def none(self, node: object, info: inspect.NoneType, path: str) -> object:
        return None if node is None else self.unexpected(node, info, path)

    def boolean(self, node: object, info: inspect.BoolType, path: str) -> object:
        return node if isinstance(node, bool) else self.unexpected(node, info, path)

    def number(self, node: object, info: inspect.IntType | inspect.FloatType, path: str) -> object:
        whole = isinstance(info, inspect.IntType)
        if isinstance(node, bool) or not isinstance(node, int if whole else (int, float)):
            return self.unexpected(node, info, path)
        if not math.isfinite(node) or not _within(node, info):
            return self.unexpected(node, info, path)
        return node if whole else float(node)

    def text(self, node: object, info: inspect.StrType, path: str) -> object:
        if not isinstance(node, str) or not _length_fits(node, info):
            return self.unexpected(node, info, path)
        if info.pattern is not None and not _matches(info.pattern, node):
            return self.unexpected(node, info, path)
        return node

    def items(self, node: object, info: Any, path: str) -> object:
        if not isinstance(node, list):
            return self.unexpected(node, info, path)
        if not _length_fits(node, info):
            return self.fault(path, f"expected {limits_of(info)}, got {len(node)}")
        made = [self.value(item, info.item_type, f"{path}[{i}]") for i, item in enumerate(node)]
        return _FAULT if _FAULT in made else _COLLECTIONS[type(info)](made)

    def mapping(self, node: object, info: inspect.DictType, path: str) -> object:
        if not isinstance(node, dict):
            return self.unexpected(node, info, path)
        if not _length_fits(node, info):
            return self.fault(path, f"expected {limits_of(info)}, got {len(node)}")
        made: dict[object, object] = {}
        for key, value in node.items():
            below = f"{path}.{key}"
            made[self.value(key, info.key_type, below)] = self.value(value, info.value_type, below)
        return _FAULT if _FAULT in made or _FAULT in made.values() else made

    def anything(self, node: object, info: inspect.Type, path: str) -> object:
        return node

    def described(self, node: object, info: inspect.Metadata, path: str) -> object:
        return self.value(node, info.type, path)


def _fits(node: object, info: inspect.Type) -> bool:
    """Whether `node` has the shape of this member of a union, whatever its contents."""
    if isinstance(info, inspect.Metadata):
        return _fits(node, info.type)
    if isinstance(info, inspect.LiteralType):
        return any(type(node) is type(value) for value in info.values)
    if isinstance(node, bool):
        return isinstance(info, inspect.BoolType)
    for shape, members in _SHAPES:
        if isinstance(info, members):
            return isinstance(node, shape)
    return True


_SHAPES: tuple[tuple[type | tuple[type, ...], tuple[type, ...]], ...] = (
    (dict, (inspect.StructType, inspect.DictType)),
    (list, (inspect.CollectionType,)),
    ((int, float), (inspect.IntType, inspect.FloatType)),
    (str, (inspect.StrType, inspect.CustomType)),
    (type(None), (inspect.NoneType,)),
)


def _nearest(node: dict[object, object], members: list[inspect.Type]) -> inspect.Type:
    """The mapping whose tag is given, or that shares the most keys with `node`."""

    def score(member: inspect.Type) -> int:
        if not isinstance(member, inspect.StructType):
            return 0
        if member.tag_field is not None:
            return 1000 if node.get(member.tag_field) == member.tag else 0
        return sum(field.encode_name in node for field in member.fields)

    return max(members, key=score)


def _words(info: inspect.UnionType) -> list[str]:
    literals = [member for member in info.types if isinstance(member, inspect.LiteralType)]
    return [str(value) for literal in literals for value in literal.values]


def _within(number: float, info: inspect.IntType | inspect.FloatType) -> bool:
    return (
        (info.gt is None or number > info.gt)
        and (info.ge is None or number >= info.ge)
        and (info.lt is None or number < info.lt)
        and (info.le is None or number <= info.le)
        and (info.multiple_of is None or number % info.multiple_of == 0)
    )


def _matches(pattern: str, text: str) -> bool:
    if pattern.endswith("$"):
        pattern = pattern[:-1] + r"\Z"  # Python's `$` also matches before a final newline
    return re.search(pattern, text) is not None


def _length_fits(node: Sized, info: Any) -> bool:
    lowest, highest = info.min_length, info.max_length
    return (lowest is None or len(node) >= lowest) and (highest is None or len(node) <= highest)


_COLLECTIONS: dict[type, Callable[[list[object]], object]] = {
    inspect.ListType: list,
    inspect.VarTupleType: tuple,
    inspect.SetType: set,
    inspect.FrozenSetType: frozenset,
}

_MAKERS: dict[type, Callable[[_Walk, object, Any, str], object]] = {
    inspect.StructType: _Walk.struct,
    inspect.UnionType: _Walk.union,
    inspect.LiteralType: _Walk.literal,
    inspect.EnumType: _Walk.enum,
    inspect.CustomType: _Walk.custom,
    inspect.NoneType: _Walk.none,
    inspect.BoolType: _Walk.boolean,
    inspect.IntType: _Walk.number,
    inspect.FloatType: _Walk.number,
    inspect.StrType: _Walk.text,
    inspect.DictType: _Walk.mapping,
    inspect.AnyType: _Walk.anything,
    inspect.Metadata: _Walk.described,
    **dict.fromkeys(_COLLECTIONS, _Walk.items),
}
