"""Scenarios: those that are shipped load, and a mistake is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.scenario import (
    LogNormal,
    Poisson,
    ScenarioError,
    load_scenario,
    parse_scenario,
    shipped,
)

GOOD = """
name: t
arrivals: {kind: poisson, rate: 2}
duration_s: 3
requests:
  - {name: a, prompt: 5, output: {kind: lognormal, median: 20, sigma: 0.5}}
"""


def test_some_are_shipped() -> None:
    assert {"agent", "burst", "chat", "gate", "long", "mixed", "rag", "voice"} <= set(shipped())


@pytest.mark.parametrize("name", shipped())
def test_each_that_is_shipped_loads(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.description


def test_what_is_read() -> None:
    scenario = parse_scenario(GOOD, "s.yaml")
    assert scenario.arrivals == Poisson(rate=2)
    assert scenario.requests[0].output == LogNormal(median=20, sigma=0.5)
    assert scenario.models[0].name == "demo"
    assert scenario.total_s == 3


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    assert load_scenario(str(path)).name == "t"


def test_a_missing_file_names_those_that_are_shipped() -> None:
    with pytest.raises(ScenarioError, match=r"nowhere: No such file.*one of: agent, burst"):
        load_scenario("nowhere")


def test_what_is_no_text_is_said(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"name: \xff\xfe")
    with pytest.raises(ScenarioError, match=r"mine.yaml: not UTF-8 text"):
        load_scenario(str(path))


TAGS = ("binary", "bool", "float", "int", "null", "omap", "pairs", "set", "str", "timestamp")


@pytest.mark.parametrize(
    "text",
    [
        *("? [1, 2]\n: x", "? {a: b}\n: c", "a: 2027-13-45", "a: 0x_", "a: &x [*x]", "\0", "<<: 1"),
        *("[" * 400, "{name: .nan}", "- 1", "", "null"),
        *(f"a: !!{tag} {value}" for tag in TAGS for value in ("x", "[x]", "{x: 1}")),
    ],
)
def test_whatever_is_no_scenario_is_one_sentence(text: str) -> None:
    with pytest.raises(ScenarioError, match=r"\As.yaml: [^\n]+\Z"):
        parse_scenario(text, "s.yaml")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rate: 2", "rate: 0", "s.yaml: arrivals.rate: Expected `float` > 0"),
        ("rate: 2", "speed: 2", "s.yaml: arrivals: Object contains unknown field `speed`"),
        ("kind: poisson", "kind: often", "s.yaml: arrivals.kind: Invalid value 'often'"),
        ("prompt: 5", "prompt: many", "s.yaml: requests[0].prompt: Expected"),
        ("duration_s: 3", "duration_s: 3\nlenght: 4", "s.yaml: file: Object contains unknown"),
        ("name: t", "name: t\nname: u", "s.yaml: line 3: 'name' stands twice"),
        ("name: t", "name: [", "s.yaml: while parsing"),
        (
            "prompt: 5",
            "prompt: {kind: uniform, low: 9, high: 5}",
            "s.yaml: requests[0].prompt.low: 9 is above high, 5",
        ),
        (
            "prompt: 5",
            "prompt: {kind: choice, values: [1, 2], weights: [1]}",
            "s.yaml: requests[0].prompt.weights: 1 of them for 2 values",
        ),
        (
            "prompt: 5",
            "prompt: {kind: choice, values: [1], weights: [0]}",
            "s.yaml: requests[0].prompt.weights: one must be above 0",
        ),
        (
            "{kind: poisson, rate: 2}",
            "{kind: closed, users: 1, think_s: {kind: uniform, low: 2, high: 1}}",
            "s.yaml: arrivals.think_s.low: 2 is above high, 1",
        ),
        (
            "  - {name: a,",
            "  - {name: a, prompt: 1, output: 1}\n  - {name: a,",
            "s.yaml: requests: each kind needs a name of its own",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(old: str, new: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(GOOD.replace(old, new, 1), "s.yaml")
    assert str(caught.value).startswith(said)
