from __future__ import annotations

from dataclasses import dataclass

import pytest

from auth.access import Access
from auth.config import AccessRule
from core.errors import Forbidden, NotFound
from core.principal import Principal
from proxy.catalog import Catalog


@dataclass
class FakeModel:
    name: str
    aliases: tuple[str, ...] = ()
    max_model_len: int | None = None


CATALOG = Catalog([FakeModel("qwen", ("gpt-4o", "a/b"), 1024), FakeModel("llama")], created=7)
ANYBODY = Principal("t")


def only(*models: str) -> Principal:
    return Principal("t", models=frozenset(models))


def names(principal: Principal) -> list[str]:
    return [card["id"] for card in CATALOG.list(principal)["data"]]


def test_names_and_aliases() -> None:
    assert CATALOG.resolve("qwen", ANYBODY) == "qwen"
    assert CATALOG.resolve("gpt-4o", ANYBODY) == "qwen"
    assert names(ANYBODY) == ["qwen", "gpt-4o", "a/b", "llama"]


def test_what_does_not_exist() -> None:
    with pytest.raises(NotFound) as caught:
        CATALOG.resolve("x" * 100_000, ANYBODY)
    assert (caught.value.reason, caught.value.param) == ("model_not_found", "model")
    assert len(caught.value.message) < 200
    with pytest.raises(NotFound):
        CATALOG.card("QWEN", ANYBODY)


@pytest.mark.parametrize("segment", ["a/b", "a%2Fb", "%61%2fb"])
def test_a_name_in_a_path_may_be_percent_encoded(segment: str) -> None:
    assert CATALOG.card(segment, ANYBODY)["id"] == "a/b"


def test_a_segment_that_is_no_text_names_no_model() -> None:
    with pytest.raises(NotFound):
        CATALOG.card("%zz%ff", ANYBODY)


def test_what_may_not_be_used() -> None:
    with pytest.raises(Forbidden) as caught:
        CATALOG.resolve("llama", only("qwen"))
    assert (caught.value.reason, caught.value.param) == ("model_not_allowed", "model")
    with pytest.raises(NotFound):
        CATALOG.card("llama", only("qwen"))
    assert names(only()) == []


def test_who_may_use_a_model_may_use_its_aliases() -> None:
    assert CATALOG.resolve("gpt-4o", only("qwen")) == "qwen"
    assert names(only("qwen")) == ["qwen", "gpt-4o", "a/b"]


def test_an_alias_alone_may_be_allowed() -> None:
    assert CATALOG.resolve("gpt-4o", only("gpt-4o")) == "qwen"
    assert names(only("gpt-4o")) == ["gpt-4o"]
    with pytest.raises(Forbidden):
        CATALOG.resolve("qwen", only("gpt-4o"))


def test_cards() -> None:
    card = {"id": "qwen", "object": "model", "created": 7, "owned_by": "headrace"}
    assert CATALOG.card("qwen", ANYBODY) == {**card, "max_model_len": 1024}
    assert CATALOG.card("a/b", ANYBODY) == {
        **card,
        "id": "a/b",
        "root": "qwen",
        "max_model_len": 1024,
    }
    assert "max_model_len" not in CATALOG.card("llama", ANYBODY)
    assert CATALOG.list(ANYBODY)["object"] == "list"


def test_rules_of_access() -> None:
    rule = AccessRule(models=("gpt-4o",), routes=("/v1/chat/completions",), tiers=("gold",))
    more = AccessRule(models=("llama",), tenants=("rival",))
    models = [FakeModel("qwen", ("gpt-4o", "a/b")), FakeModel("llama")]
    catalog = Catalog(models, created=7, access=Access([rule, more]))
    gold = Principal("t", tier="gold")
    assert catalog.resolve("qwen", gold, "/v1/chat/completions") == "qwen"
    assert catalog.resolve("qwen", ANYBODY, "/v1/completions") == "qwen"
    with pytest.raises(Forbidden) as caught:
        catalog.resolve("a/b", ANYBODY, "/v1/chat/completions")
    assert caught.value.reason == "model_not_allowed"
    assert caught.value.message == "You may not use the model `a/b` here: that takes the tier gold."
    with pytest.raises(Forbidden) as caught:
        catalog.resolve("llama", gold)
    assert "rival" not in caught.value.message
    assert [card["id"] for card in catalog.list(gold)["data"]] == ["qwen", "gpt-4o", "a/b"]
    with pytest.raises(NotFound):
        catalog.card("llama", gold)
    # What the credential says holds beside the rules.
    with pytest.raises(Forbidden):
        catalog.resolve("qwen", only("llama"), "/v1/completions")
