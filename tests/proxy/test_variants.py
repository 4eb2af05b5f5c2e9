from __future__ import annotations

import pytest
from fakes import request

from core.errors import (
    BadRequest,
    GatewayError,
    RateLimited,
    Unavailable,
    UpstreamAnswered,
    UpstreamTimeout,
)
from core.principal import Principal
from proxy.variants import Variants, make_variants, may_fall_back
from routing.config import Canary, ModelConfig

ACME, BETA = Principal("acme"), Principal("beta")
LOW, MIDDLE, HIGH = "00000000" + "0" * 24, "18000000" + "0" * 24, "f0000000" + "0" * 24


def variants(*canaries: Canary) -> Variants:
    return Variants([ModelConfig(name="m", canaries=canaries), ModelConfig(name="n")])


def test_percentages_are_parts_of_a_whole() -> None:
    some = variants(Canary(to="n", percent=5), Canary(to="o", percent=10))
    chosen = [some.chosen("m", ACME, request(), draw) for draw in (LOW, MIDDLE, HIGH)]
    assert chosen == ["n", "o", "m"]


def test_a_share_is_what_it_says() -> None:
    some = variants(Canary(to="n", percent=25))
    draws = [f"{number * 2**22:08x}" for number in range(1024)]
    assert sum(some.chosen("m", ACME, request(), draw) == "n" for draw in draws) == 256


def test_tenants_come_before_percentages() -> None:
    some = variants(Canary(to="n", percent=100), Canary(to="o", tenants=("beta",)))
    assert some.chosen("m", BETA, request(), LOW) == "o"
    assert some.chosen("m", ACME, request(), HIGH) == "n"


@pytest.mark.parametrize(
    ("wanted", "value", "chosen"),
    [
        ("X-Canary", b"anything", "n"),
        ("x-canary: on", b"on", "n"),
        ("x-canary: on", b"off", "m"),
        ("x-canary", None, "m"),
    ],
)
def test_a_header_chooses(wanted: str, value: bytes | None, chosen: str) -> None:
    headers = [] if value is None else [(b"x-canary", value)]
    some = variants(Canary(to="n", header=wanted))
    assert some.chosen("m", ACME, request(headers=headers), LOW) == chosen


def test_a_model_without_any_answers_for_itself() -> None:
    some = variants(Canary(to="m", percent=100))
    assert some.chosen("n", ACME, request(), LOW) == "n"
    assert some.after("n") == ()
    assert Variants([ModelConfig(name="m", fallback=("n", "o"))]).after("m") == ("n", "o")


def test_where_there_is_none_there_is_nothing_to_look_up() -> None:
    assert make_variants([ModelConfig(name="m")]) is None
    assert make_variants([ModelConfig(name="m", fallback=("n",))]) is not None


@pytest.mark.parametrize(
    ("error", "may"),
    [
        (Unavailable("No."), True),
        (UpstreamAnswered("No.", status=503), True),
        (UpstreamAnswered("No.", status=400), False),
        (UpstreamTimeout("No.", phase="first_token"), False),
        (BadRequest("No.", code="context_length_exceeded"), True),
        (BadRequest("No."), False),
        (RateLimited("No."), False),
    ],
)
def test_what_another_model_may_mend(error: GatewayError, may: bool) -> None:
    assert may_fall_back(error) is may
