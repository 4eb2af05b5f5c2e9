from __future__ import annotations

from typing import Any

import hiredis
import pytest
import redis.crc
from charges import STREAMS, charge_of, plan_of

from core.principal import Principal
from ratelimit import redis_command
from ratelimit.bucket import MAX_TOKENS, UNITS
from ratelimit.config import Rule
from ratelimit.redis_command import SHA, Commands

NAME = b"i" * 32
RULES = (
    Rule(name="r", limit=2, per=("tenant", "model")),
    Rule(name="t", unit="total_tokens", limit=MAX_TOKENS, window="day", shadow=True),
    STREAMS,
)
KEYS = [
    b"headrace:{a%20c}:leases",
    b"headrace:{a%20c}:open",
    b"headrace:{a%20c}:r:requests:a%20c:50%25%20%C3%BC",
    b"headrace:{a%20c}:t:total_tokens:a%20c",
    b"headrace:{a%20c}:streams:concurrent:a%20c",
]
LIMITS = [
    *(b"%d" % (2 * UNITS), b"2", b"60"),
    *(b"%d" % (MAX_TOKENS * UNITS), b"%d" % MAX_TOKENS, b"86400"),
    *(b"%d" % (3 * UNITS), b"3", b"60"),
]
PLAN = plan_of(*RULES, principal=Principal("a c"), model="50% ü")


def commands() -> Commands:
    return Commands("headrace", 60_000_000)


def parsed(data: bytes) -> Any:
    reader = hiredis.Reader()
    reader.feed(data)
    words = reader.gets()
    assert reader.gets() is False, "more than one command"
    return words


def test_reserving_is_one_well_formed_command() -> None:
    charge = charge_of(PLAN, 10**12, 5)
    assert parsed(commands().reserve(PLAN, NAME, charge.least, charge.asked)) == [
        *(b"EVALSHA", SHA, b"5", *KEYS, b"r", NAME, b"60000000", b"0", b"tTc", *LIMITS),
        *(b"%016d" % amount for amount in (UNITS, (MAX_TOKENS + 1) * UNITS, UNITS)),
        *(b"%016d" % amount for amount in (UNITS, (MAX_TOKENS + 5) * UNITS, UNITS)),
    ]


def test_so_is_telling_of_use() -> None:
    assert parsed(commands().use(PLAN, b"s", NAME, PLAN.amounts(7, 0, 3))) == [
        *(b"EVALSHA", SHA, b"5", *KEYS, b"s", NAME, b"60000000", b"0", b"tTc", *LIMITS),
        *(b"0", b"0", b"0"),
        *(b"%016d" % amount for amount in (UNITS, 10 * UNITS, UNITS)),
    ]


def test_looking_and_resetting() -> None:
    assert parsed(commands().look(PLAN))[8:10] == [b"l", b"0" * 32]
    assert parsed(commands().reset(PLAN)) == [b"DEL", *KEYS[2:]]


def test_all_keys_of_a_plan_are_in_its_slot() -> None:
    slot = commands().template(PLAN).slot
    assert {redis.crc.key_slot(key) for key in KEYS} == {slot}


def test_templates_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_command, "TEMPLATES", 100)
    made = commands()
    for _ in range(101):
        made.template(plan_of(RULES[0]))
    assert len(made._templates) == 1
