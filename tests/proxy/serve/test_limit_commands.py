from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from running import base_config

from core.errors import ConfigError
from proxy.serve import limit_commands
from proxy.serve.limit_commands import limits
from ratelimit.config import Rule
from ratelimit.live import Found, Live, slots_left
from ratelimit.redis_inspect import CannotAsk

STREAMS = Rule(name="streams", unit="concurrent", limit=3)
REDIS = {"redis": {"url": "redis://cache"}}


class FakeInspector:
    lives: Sequence[Live] = ()
    truncated = False
    error: str = ""

    def __init__(self, *given: Any) -> None:
        assert given[2] == ["demo"]

    def show(self, tenant: str) -> Sequence[Live]:
        if self.error:
            raise CannotAsk(self.error)
        return self.lives

    def reset(self, tenant: str, rule: str | None) -> int:
        return 2 if rule is None else 1


@pytest.fixture
def inspector(monkeypatch: pytest.MonkeyPatch) -> type[FakeInspector]:
    class Inspector(FakeInspector):
        pass

    monkeypatch.setattr(limit_commands, "Inspector", Inspector)
    return Inspector


@pytest.fixture
def command(tmp_path: Path, inspector: type[FakeInspector]) -> Any:
    def run(action: str, *, store: Any = REDIS, rules: Any = None, **more: Any) -> int:
        rules = [{"name": "streams", "unit": "concurrent", "limit": 3}] if rules is None else rules
        document = base_config(["http://127.0.0.1:9"], limits={"store": store, "rules": rules})
        path = tmp_path / "headrace.yaml"
        path.write_text(yaml.safe_dump(document))
        given = {"config": str(path), "tenant": "acme", "json": False, "rule": None, **more}
        return limits(argparse.Namespace(action=action, **given))

    return run


def test_show(command: Any, inspector: type[FakeInspector], capsys: Any) -> None:
    assert command("show") == 0
    assert capsys.readouterr().out == "acme: all buckets are full.\n"
    inspector.lives = [slots_left(Found("k", STREAMS, {"tenant": "acme"}), 2)]
    assert command("show") == 0
    out = capsys.readouterr().out
    assert "2 held" in out
    assert out.endswith("Buckets that are not shown are full.\n")
    assert command("show", json=True) == 0
    (bucket,) = json.loads(capsys.readouterr().out)
    assert (bucket["for"], bucket["held"]) == ({"tenant": "acme"}, 2)


def test_a_list_that_is_cut_says_so(
    command: Any, inspector: type[FakeInspector], capsys: Any
) -> None:
    inspector.truncated = True
    assert command("show") == 0
    assert "only 10000 of its buckets" in capsys.readouterr().err


def test_reset(command: Any, capsys: Any) -> None:
    assert command("reset") == 0
    assert command("reset", rule="streams") == 0
    assert capsys.readouterr().out == "OK: acme: 2 buckets reset\nOK: acme: 1 bucket reset\n"
    with pytest.raises(ConfigError, match="--rule: no rule is named `strems`; did you mean"):
        command("reset", rule="strems")


def test_a_store_that_cannot_be_asked_is_one_sentence(
    command: Any, inspector: type[FakeInspector], capsys: Any
) -> None:
    assert command("show", store="memory") == 1
    assert "`limits.store: memory`" in capsys.readouterr().err
    inspector.error = "it is away"
    assert command("show") == 1
    assert capsys.readouterr().err == "headrace: it is away\n"
    with pytest.raises(ConfigError, match="there are no rules"):
        command("show", rules=[])
