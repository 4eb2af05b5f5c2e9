from __future__ import annotations

from typing import Any

import pytest
import yaml

from auth.key_config import ApiKeyConfig
from auth.key_ring import KeyRing
from core.loading import convert
from core.principal import Principal, Quota
from proxy.serve.__main__ import main


def make(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, dict[str, Any]]:
    """The key that was shown, and its entry."""
    assert main(["key", "new", *arguments]) == 0
    shown = capsys.readouterr()
    key = shown.err.splitlines()[1]
    assert key not in shown.out
    (entry,) = yaml.safe_load(shown.out)
    return key, entry


def found(key: str, entry: dict[str, Any]) -> Principal:
    """Whom it stands for, a second before 2030."""
    return KeyRing([convert(entry, ApiKeyConfig, "/")]).find(key.encode(), 1_893_455_999.0)


def test_a_new_key_opens_what_its_entry_says(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--tenant", "acme", "--user", "bob", "--tier", "gold", "--model", "m", "--model"]
    key, entry = make(capsys, *options, "n", "--id", "k", "--expires", "2030-01-01")
    principal = found(key, entry)
    assert (principal.tenant, principal.subject, principal.tier) == ("acme", "bob", "gold")
    assert (principal.models, principal.key) == (frozenset({"m", "n"}), "k")


def test_what_else_a_key_can_say(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--tenant", "acme", "--organisation", "group", "--group", "ml", "--group", "ops"]
    options += ["--priority", "-5", "--limit", "requests=100", "--limit", "tokens=5000:20000"]
    principal = found(*make(capsys, *options))
    assert (principal.organisation, principal.groups) == ("group", frozenset({"ml", "ops"}))
    assert principal.priority == -5
    assert dict(principal.limits) == {"requests": Quota(100), "tokens": Quota(5000, 20000)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--limit", "requests"], "--limit: expected RULE=LIMIT or RULE=LIMIT:BURST"),
        (["--limit", "requests=-1"], "--limit: expected RULE=LIMIT or RULE=LIMIT:BURST"),
        (["--priority", "1001"], "--priority: expected a whole number from -1000 to 1000"),
        (["--organisation", "a\nb"], "--organisation: expected at most 256 printable"),
    ],
)
def test_faults_name_the_option(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["key", "new", "--tenant", "acme", *options]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err


def test_each_key_is_another_one(capsys: pytest.CaptureFixture[str]) -> None:
    (first, one), (second, two) = (make(capsys, "--tenant", "acme") for _ in range(2))
    assert first != second
    assert one["id"] != two["id"]
    assert first not in str(one)


def test_an_entry_that_would_be_refused_is_not_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "new", "--tenant", "acme", "--expires", "soon"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "--expires: expected a date" in shown.err


def test_a_key_that_has_expired_already_is_not_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "new", "--tenant", "acme", "--expires", "2020-12-31"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "--expires: 2020-12-31 is over" in shown.err
