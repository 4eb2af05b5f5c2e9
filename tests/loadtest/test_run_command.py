"""What a command changes of a scenario, and what of it is written down."""

from __future__ import annotations

import argparse
import signal

import pytest

from loadtest.run_command import (
    CannotRun,
    _without_secrets,
    add_to,
    at_rate,
    changed,
    unhurried,
    without_secrets,
)
from loadtest.scenario import Constant, Gamma, Model, load_scenario


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_to(parser.add_subparsers())
    return parser.parse_args(["run", "chat", "--url", "http://a", *words])


def test_nothing_said_changes_nothing() -> None:
    assert changed(load_scenario("chat"), parsed()) == load_scenario("chat")


def test_what_is_said_counts() -> None:
    words = ["--duration", "7", "--warm-up", "0", "--model", "m", "--header", "X-Team: a: b"]
    scenario = changed(load_scenario("chat"), parsed(*words))
    assert (scenario.duration_s, scenario.warm_up_s) == (7, 0)
    assert scenario.models == [Model(name="m")]
    assert scenario.headers == {"x-team": "a: b"}


def test_a_rate_keeps_the_kind_of_arrivals() -> None:
    assert at_rate(load_scenario("mixed"), 3).arrivals == Gamma(rate=3, burstiness=0.5)
    assert not isinstance(at_rate(load_scenario("chat"), 3).arrivals, Constant)


@pytest.mark.parametrize("name", ["long", "burst"])
def test_a_rate_that_means_nothing_is_refused(name: str) -> None:
    with pytest.raises(CannotRun, match="arrivals of this scenario"):
        at_rate(load_scenario(name), 3)


@pytest.mark.parametrize("line", ["x", ": y", "a: b\r\nc: d"])
def test_a_header_is_one_line_with_a_name(line: str) -> None:
    with pytest.raises(CannotRun, match="--header"):
        changed(load_scenario("chat"), parsed("--header", line))


def test_secrets_are_not_written_down() -> None:
    words = ["run", "--header", "Authorization: Bearer s3", "--header=X-API-Key: s3", "--seed", "1"]
    said = _without_secrets(words)
    assert "s3" not in said
    assert said.startswith("run --header 'Authorization: (left out)'")
    assert said.endswith("--seed 1")
    assert "x-team: a" in _without_secrets(["--header", "x-team: a"])


def test_an_attached_file_loses_its_secrets() -> None:
    text = (
        'password: s3\ntokenizer: path\nurl: "redis://u:s3@host/0"\n  "api_key" = s3\nunit: tokens'
    )
    found = without_secrets(text)
    assert "s3" not in found
    assert "tokenizer: path" in found
    assert "unit: tokens" in found


def test_an_interrupt_does_not_end_what_is_worked_out() -> None:
    before = signal.getsignal(signal.SIGINT)
    with unhurried():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
