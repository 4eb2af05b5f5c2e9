from __future__ import annotations

from typing import Any

from core.loading import convert
from proxy.serve.config import Config
from proxy.serve.differences import differences

BASE: dict[str, Any] = {
    "listen": {"addresses": ["127.0.0.1:8080"], "tls": "off"},
    "auth": "none",
    "workers": 1,
    "models": [{"name": "m"}],
    "replicas": [{"url": "http://r0:8000", "model": "m"}],
}


def config(**sections: Any) -> Config:
    return convert({**BASE, **sections}, Config, "/")


def test_what_is_the_same_does_not_differ() -> None:
    assert differences(config(), config()) == []


def test_settings_are_named_by_their_paths_alone() -> None:
    changed = config(
        listen={**BASE["listen"], "timeouts": {"head_s": 1.0, "body_s": 2.0}},
        models=[{"name": "m", "aliases": ["n"]}],
        limits={"rules": []},
        drain_s=1.0,
    )
    assert set(differences(config(), changed)) == {
        "$.listen.timeouts.head_s",
        "$.listen.timeouts.body_s",
        "$.models",
        "$.limits",
        "$.drain_s",
    }


def test_no_deeper_than_asked() -> None:
    changed = config(listen={**BASE["listen"], "timeouts": {"head_s": 1.0}})
    assert differences(config(), changed, depth=2) == ["$.listen.timeouts"]
    assert differences(config(), changed, depth=0) == ["$"]
