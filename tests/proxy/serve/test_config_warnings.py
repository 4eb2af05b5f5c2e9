from __future__ import annotations

from typing import Any

import pytest

from core.loading import convert
from proxy.serve.config import Config
from proxy.serve.config_warnings import warnings

NOBODY_WAITS = {"admission": {"max_waiting": 0}}


def made(**changes: Any) -> Config:
    document = {
        "listen": {"addresses": ["127.0.0.1:8080"], "tls": "off"},
        "auth": "none",
        "models": [{"name": "qwen3"}],
        "replicas": [{"url": "http://127.0.0.1:8000", "model": "qwen3"}],
    }
    return convert({**document, **changes}, Config, "/etc")


def test_a_priority_that_nobody_takes_is_warned_of() -> None:
    issuer = {
        "issuer": "https://id.example",
        "audiences": ["a"],
        "jwks": {"file": "keys.json"},
        "claims": {"priority": "rank"},
    }
    (line,) = warnings(made(auth={"issuers": [issuer]}, routing=NOBODY_WAITS))
    assert line.startswith("$.auth.issuers: a claim is the priority")
    models = [{"name": "qwen3", "takes_priority": True}]
    assert warnings(made(auth={"issuers": [issuer]}, models=models, routing=NOBODY_WAITS)) == []
    assert warnings(made(auth={"issuers": [issuer]})) == []


@pytest.mark.parametrize(
    ("auth", "place"),
    [
        (
            {"api_keys": {"keys": [{"id": "k", "sha256": "0" * 64, "tenant": "a", "priority": 1}]}},
            "$.auth.api_keys:",
        ),
        (
            {"client_certificates": [{"dns": "a.example", "tenant": "a", "priority": -1}]},
            "$.auth.client_certificates:",
        ),
    ],
)
def test_so_is_one_of_a_key_or_a_certificate(auth: Any, place: str) -> None:
    tls = {
        "certificates": [{"certificate": "c.pem", "key": "k.pem"}],
        "client_certificates": {"ca": "ca.pem"},
    }
    listen = {"addresses": ["127.0.0.1:8080"], "tls": tls}
    (line,) = warnings(made(auth=auth, listen=listen, routing=NOBODY_WAITS))
    assert line.startswith(place)
    models = [{"name": "qwen3", "takes_priority": True}]
    assert warnings(made(auth=auth, listen=listen, models=models, routing=NOBODY_WAITS)) == []


def test_what_is_allowed_but_seldom_meant_is_warned_of() -> None:
    assert warnings(made()) == []
    opened = made(
        listen={"addresses": ["127.0.0.1:1", "0.0.0.0:2"], "tls": "off"},
        admin={"address": "[::]:3"},
    )
    found = warnings(opened)
    assert [line.partition(":")[0] for line in found] == [
        "$.listen.tls",
        "$.auth",
        "$.admin.address",
    ]
    assert "0.0.0.0:2" in found[0]
    assert "127.0.0.1:1" not in found[0]
