"""The strict reading of YAML."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.document import parse
from core.errors import ConfigError

TAGS = ("binary", "bool", "float", "int", "null", "omap", "pairs", "set", "str", "timestamp")


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        *[(word, word) for word in ("no", "yes", "on", "off", "y", "n", "Off", "NO")],
        ("true", True),
        ("False", False),
        ("12:30", "12:30"),
        ("190:20:30", "190:20:30"),
        ("0777", "0777"),
        ("0x1f", "0x1f"),
        ("2024-01-01", "2024-01-01"),
        ("10.0.0.1", "10.0.0.1"),
        ("1e", "1e"),
        ("=", "="),
        ("9" * 19, "9" * 19),
        ("0", 0),
        ("-3", -3),
        ("4_000", 4000),
        ("1.5", 1.5),
        ("1e5", 1e5),
        ("-.5", -0.5),
        (".inf", float("inf")),
        ("~", None),
        ("null", None),
        ("", None),
        ("'5'", "5"),
        ("'null'", "null"),
    ],
)
def test_scalars(scalar: str, value: object) -> None:
    parsed = parse(f"key: {scalar}\n")
    assert parsed == {"key": value}
    assert type(parsed["key"]) is type(value)


def test_every_duplicate_key_is_named_with_both_lines() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("a: 1\nb:\n  c: 1\n  c: 2\na: 3\n")
    assert sorted(str(caught.value).splitlines()) == [
        "line 4: the key `c` was already given on line 3",
        "line 5: the key `a` was already given on line 1",
    ]


def test_a_key_given_twice_on_one_line_is_found() -> None:
    with pytest.raises(ConfigError, match="the key `a` was already given on line 1"):
        parse("{a: 1, a: 2}")


def test_merge_keys_may_be_overridden() -> None:
    text = "base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\n"
    assert parse(text) == {"base": {"x": 1, "y": 2}, "use": {"x": 1, "y": 3}}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: [", "line 1, column 5: not valid YAML"),
        ("a:\n\t- b", "line 2, column 1"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("a: \x01", "not valid YAML"),
        ("a: 1\n---\nb: 1\n", "line 2.*document"),
        ("{[]: 1}", "line 1"),
        ("[" * 1000, "not usable as YAML"),
        ("a: !!timestamp x", "not usable as YAML"),
        ("a: !!int x", "not usable as YAML"),
    ],
)
def test_what_cannot_be_read_says_where(text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        parse(text)


@given(st.text(max_size=40))
def test_no_text_raises_anything_else(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse(text)


@given(st.text(max_size=10))
def test_no_value_of_a_tag_does_either(value: str) -> None:
    for tag in TAGS:
        with contextlib.suppress(ConfigError):
            parse(f"a: !!{tag} '{value}'")
