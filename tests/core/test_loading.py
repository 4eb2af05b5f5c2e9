"""From a document to sections: everything is reported, with its path."""

from __future__ import annotations

import enum
import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from core.errors import ConfigError
from core.loading import ConfigProblems, Problem, convert, load, read_bounded, schema
from core.section import Contradictions, FilePath, Secret, Section


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Redis(Section):
    url: str
    database: int = 0


class RedisStore(Section):
    redis: Redis


class Range(Section):
    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"`low` ({self.low}) is above `high` ({self.high})")


class Twins(Section):
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        faults = [(f".names[{i}]", "is empty") for i, n in enumerate(self.names) if not n]
        if faults:
            raise Contradictions(faults)


class Round(Section, tag_field="kind", tag="round"):
    radius: float


class Square(Section, tag_field="kind", tag="square"):
    radius: float
    side: float


class Root(Section):
    auth: Literal["none"] | Redis = "none"
    store: Literal["memory"] | RedisStore = "memory"
    secret: Secret | None = None
    path: FilePath | None = None
    flag: bool = False
    port: Annotated[int, Meta(ge=1, le=65535)] = 1
    ratio: Annotated[float, Meta(gt=0)] = 1.0
    name: Annotated[str, Meta(min_length=1, max_length=3)] = "x"
    word: Annotated[str, Meta(pattern="^[a-z]+$")] = "x"
    ranges: tuple[Range, ...] = ()
    tags: frozenset[str] = frozenset()
    some: Annotated[tuple[int, ...], Meta(min_length=1)] = (1,)
    headers: dict[str, int] = {}  # noqa: RUF012 - msgspec copies it
    twins: Twins | None = None
    colour: Colour = Colour.RED
    shape: Round | Square | None = None
    renamed: int = msgspec.field(name="with-dash", default=0)


def faults(document: object) -> list[str]:
    with pytest.raises(ConfigProblems) as caught:
        convert(document, Root, "/base")
    assert str(caught.value).splitlines() == [str(p) for p in caught.value.problems]
    return str(caught.value).splitlines()


def test_a_whole_document() -> None:
    made = convert(
        {
            "auth": {"url": "redis://a"},
            "store": {"redis": {"url": "x", "database": 3}},
            "secret": "file:key",
            "path": "a/b",
            "flag": True,
            "ratio": 2,
            "ranges": [{"low": 1, "high": 2}],
            "tags": ["a", "b"],
            "headers": {"a": 1},
            "colour": "blue",
            "shape": {"kind": "square", "radius": 1, "side": 2},
            "with-dash": 4,
        },
        Root,
        "/base",
    )
    assert made == Root(
        auth=Redis(url="redis://a"),
        store=RedisStore(redis=Redis(url="x", database=3)),
        secret=Secret("file:/base/key"),
        path=FilePath("/base/a/b"),
        flag=True,
        ratio=2.0,
        ranges=(Range(low=1, high=2),),
        tags=frozenset({"a", "b"}),
        headers={"a": 1},
        colour=Colour.BLUE,
        shape=Square(radius=1.0, side=2.0),
        renamed=4,
    )
    assert type(made.ratio) is float
    assert type(made.path) is FilePath


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        (None, "$: expected a mapping with `auth`, .*, got nothing"),
        ({"prot": 1}, "$: unknown key `prot`; did you mean `port`?"),
        ({"zzzzzz": 1}, "$: unknown key `zzzzzz`; known keys: auth, store, "),
        ({3: 1}, "$: unknown key `3`"),
        ({"auth": {}}, "$.auth: missing key `url` (text)"),
        ({"auth": "nine"}, '$.auth: expected `none` or a mapping with `url`, `database`, got "nin'),
        ({"auth": "nonne"}, "did you mean `none`?"),
        (
            {"auth": None},
            "$.auth: expected `none` or a mapping with `url`, `database`, got nothing",
        ),
        ({"auth": False}, "$.auth: expected `none` or a mapping with .*, got `false`"),
        ({"store": {"redis": {"url": 3}}}, "$.store.redis.url: expected text, got 3 (put it in qu"),
        ({"port": "80"}, '$.port: expected an integer between 1 and 65535, got "80"'),
        ({"port": 0}, "$.port: expected an integer between 1 and 65535, got 0"),
        ({"port": True}, "$.port: expected an integer between 1 and 65535, got `true`"),
        ({"port": 1.0}, "$.port: expected an integer between 1 and 65535, got 1.0"),
        ({"ratio": 0}, "$.ratio: expected a number above 0, got 0"),
        ({"ratio": float("nan")}, "$.ratio: expected a number above 0, got nan"),
        ({"ratio": float("inf")}, "$.ratio: expected a number above 0, got inf"),
        ({"flag": "yes"}, '$.flag: expected `true` or `false`, got "yes"'),
        ({"name": ""}, '$.name: expected text of at least 1 and at most 3 characters, got ""'),
        ({"word": "A\n"}, r'$.word: expected text that matches ^[a-z]+$, got "A\n"'),
        ({"word": "a\n"}, r'$.word: expected text that matches ^[a-z]+$, got "a\n"'),
        ({"some": []}, "$.some: expected at least 1 entry, got 0"),
        ({"some": 3}, "$.some: expected a list (each entry an integer) of at least 1 entry, got 3"),
        ({"some": [1, "a"]}, '$.some[1]: expected an integer, got "a"'),
        ({"headers": {"a": "b"}}, '$.headers.a: expected an integer, got "b"'),
        ({"headers": []}, "$.headers: expected a mapping, got an empty list"),
        ({"colour": "green"}, '$.colour: expected `red` or `blue`, got "green"'),
        ({"ranges": [{"low": 2, "high": 1}]}, "$.ranges[0]: `low` (2) is above `high` (1)"),
        ({"twins": {"names": ["a", ""]}}, "$.twins.names[1]: is empty"),
        ({"shape": {"kind": "square", "radius": 1}}, "$.shape: missing key `side`"),
        ({"path": ""}, "$.path: expected a path"),
        ({"path": 3}, "$.path: expected a path"),
    ],
)
def test_one_fault(document: object, fault: str) -> None:
    found = faults(document)
    assert len(found) == 1
    before, _, after = fault.partition(".*")
    assert found[0].startswith(before) or before in found[0]
    assert after in found[0]


def test_all_faults_are_reported_at_once() -> None:
    found = faults(
        {
            "auth": {"ulr": "x"},
            "port": 0,
            "ranges": [{"low": 2, "high": 1}, {"low": "a"}],
            "secret": "sk-123",
            "other": 1,
        }
    )
    assert [line.partition(": ")[0] for line in found] == [
        "$",
        "$.auth",
        "$.auth",
        "$.secret",
        "$.port",
        "$.ranges[0]",
        "$.ranges[1].low",
        "$.ranges[1]",
    ]


@pytest.mark.parametrize("written", ["sk-123456", {"sk-123456": 1}, ["sk-123456"]])
def test_what_was_written_for_a_secret_is_never_shown(written: object) -> None:
    found = faults({"secret": written})
    assert len(found) == 1
    if isinstance(written, str):
        assert "sk-123456" not in found[0]
    assert "[" not in found[0]


def test_the_contents_of_a_mapping_are_not_shown() -> None:
    assert "sk-123456" not in faults({"port": {"key": "sk-123456"}})[0]


def test_long_values_are_cut() -> None:
    assert len(faults({"colour": "x" * 5000})[0]) < 200


def test_a_faultless_section_with_a_faulty_neighbour_still_checks_itself() -> None:
    found = faults({"port": 0, "ranges": [{"low": 2, "high": 1}]})
    assert len(found) == 2


def test_load_reads_a_file_and_starts_paths_at_its_folder(tmp_path: os.PathLike[str]) -> None:
    file = os.path.join(tmp_path, "headrace.yaml")
    with open(file, "w", encoding="utf-8") as text:
        text.write("path: x\nauth: none\n")
    assert load(file, Root).path == os.path.join(tmp_path, "x")


def test_load_says_what_is_wrong_with_the_file(tmp_path: os.PathLike[str]) -> None:
    file = os.path.join(tmp_path, "headrace.yaml")
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*No such file"):
        load(file, Root)
    with pytest.raises(ConfigError, match="Is a directory"):
        load(os.fspath(tmp_path), Root)
    with open(file, "wb") as binary:
        binary.write(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(file, Root)


def test_the_schema_is_json_and_knows_the_value_types() -> None:
    made = json.loads(json.dumps(schema(Root)))
    properties = made["$defs"]["Root"]["properties"]
    assert made["$defs"]["Root"]["additionalProperties"] is False
    assert properties["secret"]["anyOf"][0]["pattern"] == "^(file|env):.+"
    assert properties["port"]["maximum"] == 65535


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
keys = st.sampled_from([*Root.__struct_encode_fields__, "redis", "url", "low", "kind"]) | st.text()
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@given(documents)
def test_any_document_becomes_sections_or_named_problems(document: Any) -> None:
    made, problems = outcome(document)
    if made is None:
        assert problems
        assert all(p.path.startswith("$") and p.sentence for p in problems)
    else:
        assert isinstance(document, dict)


def outcome(document: object) -> tuple[Root | None, tuple[Problem, ...]]:
    try:
        return convert(document, Root, "/base"), ()
    except ConfigProblems as error:
        return None, error.problems


def test_what_others_write_is_read_within_bounds(tmp_path: Path) -> None:
    file = tmp_path / "replicas.yaml"
    file.write_bytes(b"12345678")
    assert read_bounded(str(file), 8) == b"12345678"
    with pytest.raises(ConfigError, match="is larger than 7 bytes"):
        read_bounded(str(file), 7)
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
        read_bounded(str(tmp_path / "nothing"), 8)
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for a writer
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(ConfigError, match="is no plain file"):
            read_bounded(str(path), 8)
