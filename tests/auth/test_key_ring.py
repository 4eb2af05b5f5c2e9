from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from auth.api_key import digest_of, make_key
from auth.key_config import ApiKeyConfig, ApiKeysConfig, Instant, QuotaConfig
from auth.key_ring import KeyRing
from auth.token import TokenRefused
from core.errors import ConfigError
from core.principal import Principal, Quota
from core.section import FilePath

NOW = 1_700_000_000.0
KEY = make_key(bytes(32)).encode()
OTHER = make_key(bytes([1]) * 32).encode()


def entry(key: bytes = KEY, **changes: Any) -> ApiKeyConfig:
    return ApiKeyConfig(**{"id": "k", "sha256": digest_of(key).hex(), "tenant": "acme"} | changes)


def refusal(ring: KeyRing, key: bytes, now: float = NOW) -> str:
    with pytest.raises(TokenRefused) as caught:
        ring.find(key, now)
    return str(caught.value)


def test_a_key_names_its_principal() -> None:
    full = entry(
        user="bob",
        tier="gold",
        organisation="group",
        groups=("ml",),
        models=("qwen3",),
        limits={"tokens": QuotaConfig(limit=5, burst=7)},
    )
    assert KeyRing([full]).find(KEY, NOW) == Principal(
        "acme",
        "bob",
        "gold",
        frozenset({"qwen3"}),
        "group",
        "k",
        (("tokens", Quota(5, 7)),),
        frozenset({"ml"}),
    )
    assert KeyRing([entry()]).find(KEY, NOW) == Principal("acme", key="k")


def test_several_keys_of_one_tenant_hold_at_a_time() -> None:
    ring = KeyRing([entry(), entry(OTHER, id="next")])
    assert (ring.find(KEY, NOW).key, ring.find(OTHER, NOW).key) == ("k", "next")


def test_other_keys_are_refused() -> None:
    ring = KeyRing([entry()])
    assert refusal(ring, OTHER) == "unknown API key"
    assert refusal(ring, KEY[:-1] + b"_") == "mistyped API key"


def test_a_key_expires() -> None:
    ring = KeyRing([entry(expires_at=Instant(NOW))])
    assert ring.find(KEY, NOW - 0.001).tenant == "acme"
    assert refusal(ring, KEY, NOW) == "API key expired"


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (entry(OTHER), "the API key `k` is given twice"),
        (entry(id="l"), "`k` and `l` have the same"),
    ],
)
def test_one_id_and_one_hash_for_each(second: ApiKeyConfig, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        KeyRing([entry(), second])


def write(path: Path, text: str) -> ApiKeysConfig:
    path.write_text(text)
    return ApiKeysConfig(file=FilePath(path), keys=(entry(),))


def test_a_file_has_keys_too(tmp_path: Path) -> None:
    sha256 = digest_of(OTHER).hex()
    text = f"keys:\n  - {{id: f, sha256: {sha256}, tenant: b, expires_at: 2030-01-01}}\n"
    ring = KeyRing.load(write(tmp_path / "keys.yaml", text))
    assert (ring.find(OTHER, NOW).tenant, ring.find(KEY, NOW).tenant) == ("b", "acme")
    assert refusal(ring, OTHER, 1_893_456_000.0) == "API key expired"


def test_a_file_of_faults_names_itself(tmp_path: Path) -> None:
    text = f"keys:\n  - {{id: f, sha256: {KEY.decode()}, tenant: b, expires_at: soon}}\n"
    with pytest.raises(ConfigError) as caught:
        KeyRing.load(write(tmp_path / "keys.yaml", text))
    assert str(tmp_path / "keys.yaml") in str(caught.value)
    assert "$.keys[0].expires_at: expected a date" in str(caught.value)


def test_a_key_in_the_place_of_its_hash_is_not_repeated(tmp_path: Path) -> None:
    text = f"keys:\n  - {{id: f, sha256: {KEY.decode()}, tenant: b}}\n"
    with pytest.raises(ConfigError, match="expected 64 hex digits") as caught:
        KeyRing.load(write(tmp_path / "keys.yaml", text))
    assert KEY.decode() not in str(caught.value)


def test_without_a_section_there_are_no_keys() -> None:
    assert refusal(KeyRing.load(None), KEY) == "unknown API key"
    assert KEY.decode() not in repr(KeyRing([entry()]))


def test_figures_of_keys_are_named() -> None:
    ring = KeyRing([entry(limits={"tokens": QuotaConfig(limit=5)})])
    assert list(ring.quotas()) == [("k", "tokens")]
