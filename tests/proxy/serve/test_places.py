from __future__ import annotations

import pytest

from backend.config import ReplicaConfig
from core.errors import ConfigError
from proxy.serve.places import Places, room_for


def replicas(ids: str, **fields: str) -> list[ReplicaConfig]:
    return [
        ReplicaConfig(url=f"http://{fields.get(name, name)}", model="m", id=name)
        for name in ids.split()
    ]


def test_each_keeps_its_place_and_a_free_one_rests() -> None:
    first = Places(8, {}).renewed(replicas("a b c"))
    assert first.by_id == {"a": 0, "b": 1, "c": 2}
    assert first.renewed(replicas("c b a")).by_id == first.by_id
    second = first.renewed(replicas("c d a"))
    assert second.by_id == {"a": 0, "c": 2, "d": 3}
    third = second.renewed(replicas("c d a b"))
    assert third.by_id["b"] == 4
    # Two rest at most; then the first that left is free.
    fourth = third.renewed(replicas("b")).renewed(replicas("b e f"))
    assert fourth.by_id == {"b": 4, "e": 1, "f": 2}
    assert fourth.resting == (3, 0)


def test_another_server_under_an_id_gets_another_place() -> None:
    first = Places(8, {}).renewed(replicas("a b"))
    assert first.renewed(replicas("a b", a="elsewhere")).by_id == {"a": 2, "b": 1}


def test_whoever_rests_makes_way_when_all_is_full() -> None:
    places = Places(4, {}).renewed(replicas("a b c d")).renewed(replicas("e f g h"))
    assert sorted(places.by_id.values()) == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match=r"\$.replicas: 5 of them.* room for 4; it needs a"):
        places.renewed(replicas("a b c d e"))


def test_there_is_room_for_as_many_again() -> None:
    assert [room_for(count) for count in (0, 1, 32, 33, 100)] == [64, 64, 64, 128, 256]
    assert [room_for(count, 2) for count in (0, 10, 11, 32)] == [21, 21, 42, 84]
