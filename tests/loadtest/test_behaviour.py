from __future__ import annotations

import math

import pytest

from loadtest.replica.behaviour import KNOWN, parse_behaviour, requested


def test_a_name_alone_has_its_usual_value():
    assert parse_behaviour("stall_mid") == {"stall_mid": KNOWN["stall_mid"][0]}


def test_values_blanks_and_empty_parts():
    assert parse_behaviour(" kill_mid=5 , no_done,, ") == {"kill_mid": 5.0, "no_done": 0}
    assert parse_behaviour("stall_first") == {"stall_first": math.inf}
    assert parse_behaviour("") == {}


@pytest.mark.parametrize("text", ["nonsense", "kill_mid=soon", "kill_mid:3"])
def test_what_is_not_known_is_refused(text):
    with pytest.raises(ValueError, match=r"unknown behaviour|could not convert"):
        parse_behaviour(text)


def test_header_and_user_go_over_the_default():
    default = parse_behaviour("token_ms=5,no_done")
    found = requested(default, "token_ms=1", "fake:kill_mid=3")
    assert found == {"token_ms": 1.0, "no_done": 0, "kill_mid": 3.0}


@pytest.mark.parametrize("user", [None, "alice", 7, ["fake:kill_mid"]])
def test_an_ordinary_user_asks_for_nothing(user):
    default = parse_behaviour("no_done")
    assert requested(default, "", user) is default
