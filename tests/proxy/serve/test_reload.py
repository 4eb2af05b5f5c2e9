from __future__ import annotations

from typing import Any

import pytest

from core.loading import convert
from proxy.serve.config import Config
from proxy.serve.reload import static_changes

BASE: dict[str, Any] = {
    "listen": {"addresses": ["127.0.0.1:8080", "127.0.0.1:8081"], "tls": "off"},
    "auth": "none",
    "workers": 1,
    "admin": {"address": "127.0.0.1:9090"},
    "models": [{"name": "m"}],
    "replicas": [{"url": "http://r0:8000", "model": "m"}],
}
LIMITS = {"store": {"redis": {"url": "redis://h:1/0"}}}
TLS = {"certificate": "/c.pem", "key": "/k.pem"}


def config(**sections: Any) -> Config:
    return convert({**BASE, **sections}, Config, "/")


def listen(**settings: Any) -> dict[str, Any]:
    return {**BASE["listen"], **settings}


@pytest.mark.parametrize(
    ("sections", "sentences"),
    [
        (
            {"listen": listen(addresses=["127.0.0.1:8080"])},
            ["$.listen.addresses: was 127.0.0.1:8080, 127.0.0.1:8081 and is 127.0.0.1:8080"],
        ),
        ({"listen": listen(tls=TLS)}, ["$.listen.tls: was off and is on"]),
        ({"admin": None}, ["$.admin.address: was 127.0.0.1:9090 and is not given"]),
        ({"workers": 3}, ["$.workers: was 1 and is 3"]),
        (
            {"routing": {"hosts": {"redis": True}}, "limits": LIMITS},
            ["$.routing.hosts.redis: was false, and a single worker has no core that could do it"],
        ),
        (
            {"routing": {"tiers": {"cpu": 0.8}}},
            ["$.routing.tiers: needs more or fewer bits in shared memory than before"],
        ),
        (
            {"workers": 3, "admin": {"address": "127.0.0.1:9091"}},
            [
                "$.admin.address: was 127.0.0.1:9090 and is 127.0.0.1:9091",
                "$.workers: was 1 and is 3",
            ],
        ),
    ],
)
def test_what_needs_a_restart(sections: dict[str, Any], sentences: list[str]) -> None:
    mend = "; it needs a restart (or put the old value back)"
    assert static_changes(config(), config(**sections)) == [text + mend for text in sentences]


def test_turning_tls_off_is_named_too() -> None:
    (sentence,) = static_changes(config(listen=listen(tls=TLS)), config())
    assert sentence.startswith("$.listen.tls: was on and is off")


def test_everything_else_is_dynamic() -> None:
    changed = config(
        listen=listen(
            addresses=["127.0.0.1:8081", "127.0.0.1:8080"],
            health_path="/up",
            cors={"origins": ["*"]},
            timeouts={"head_s": 1.0},
            limits={"max_headers": 7},
        ),
        auth={"issuers": [{"issuer": "i", "audiences": ["a"], "jwks": {"url": "https://i/k"}}]},
        models=[{"name": "n", "aliases": ["m"]}],
        replicas=[{"url": "http://r1:8000", "model": "n", "weight": 2.0}],
        limits={"rules": [{"name": "all", "limit": 1}]},
        routing={"policy": "round_robin"},
        upstream={"timeouts": {"connect_s": 1.0}, "retries": {"max_tries": 1}},
        log={"access": "off", "level": "debug"},
        drain_s=1.0,
    )
    assert static_changes(config(), changed) == []
    certificates = listen(tls={"certificate": "/d.pem", "key": "/l.pem"})
    assert static_changes(config(listen=listen(tls=TLS)), config(listen=certificates)) == []
