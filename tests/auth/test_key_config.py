from __future__ import annotations

from typing import Any

import pytest

from auth.key_config import ApiKeyConfig, ApiKeysConfig
from core.errors import ConfigError
from core.loading import convert

GOOD = {"id": "k", "sha256": "0" * 64, "tenant": "acme"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2027-01-31", 1_801_353_600.0),
        ("2027-01-31T12:00:00Z", 1_801_396_800.0),
        ("2027-01-31T12:00:00+02:00", 1_801_389_600.0),
    ],
)
def test_when_a_key_expires(text: str, seconds: float) -> None:
    assert convert(GOOD | {"expires_at": text}, ApiKeyConfig, "/").expires_at == seconds


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"expires_at": "2027-01-31T12:00:00"}, r"\$\.expires_at: expected a date"),
        ({"expires_at": "2027-02-31"}, r"\$\.expires_at: expected a date"),
        ({"id": ""}, r"\$\.id: expected 1 to 256"),
        ({"tenant": "a\nb"}, r"\$\.tenant: expected 1 to 256"),
        ({"user": "x" * 257}, r"\$\.user: expected at most 256"),
        ({"sha256": "0" * 63}, r"\$\.sha256: expected 64 hex digits"),
        ({"priority": -1001}, r"\$\.priority: expected a whole number from -1000 to 1000"),
        ({"limits": {"r": {"limit": -1}}}, r"\$\.limits.*limit: expected at least 0"),
    ],
)
def test_faults_name_their_place(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        convert(GOOD | change, ApiKeyConfig, "/")


def test_there_must_be_keys() -> None:
    with pytest.raises(ConfigError, match="expected `file`, `keys` or both"):
        convert({}, ApiKeysConfig, "/")
