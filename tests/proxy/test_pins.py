from __future__ import annotations

from proxy.pins import MOST, TTL_S, Pins


def test_no_tenant_is_named_by_the_end_of_an_id() -> None:
    """What is signed is `unique tenant`: a blank must not move from one to the other."""
    pins = Pins(b"secret")
    mark = pins.new_id("abc", "x acme")[-32:]
    assert pins.owned("resp_abc" + mark, "x acme")
    assert not pins.owned("resp_abc x" + mark, "acme")


def test_an_id_tells_whose_it_is() -> None:
    response_id = Pins(b"secret").new_id("feed" * 8, "acme")
    assert response_id.startswith("resp_" + "feed" * 8)
    other_worker = Pins(b"secret")
    assert other_worker.owned(response_id, "acme")
    assert not other_worker.owned(response_id, "beta")
    assert not Pins(b"other").owned(response_id, "acme")


def test_no_other_id_is_anybodys() -> None:
    pins = Pins(b"secret")
    good = pins.new_id("a", "acme")
    for bad in ("", "resp_", "resp_1234", "resp_" + "é" * 40, good[:-1], good + "a", good[5:]):
        assert not pins.owned(bad, "acme")


def test_where_it_is_held_is_known_for_a_while() -> None:
    pins = Pins(b"")
    pins.note("a", "r0", "m", now=10.0)
    pin = pins.find("a", 10.0 + TTL_S - 1)
    assert pin is not None
    assert (pin.replica, pin.model) == ("r0", "m")
    assert pins.find("a", 10.0 + TTL_S) is None
    assert repr(pins) == "<Pins 0>"


def test_the_oldest_is_forgotten() -> None:
    pins = Pins(b"")
    for number in range(MOST + 1):
        pins.note(str(number), "r0", "m", now=1.0)
    assert pins.find("0", 1.0) is None
    assert pins.find("1", 1.0) is not None
