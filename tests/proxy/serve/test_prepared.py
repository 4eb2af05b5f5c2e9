from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from core.errors import ConfigError
from core.loading import convert
from loadtest.replica.options import DEMO_MODEL
from proxy.serve.config import Config
from proxy.serve.prepared import Prepared, Shared, prepare
from proxy.serve.throwaway import Issuer, make_certificate

DEMO = {
    "name": "m",
    "tokenizer": str(DEMO_MODEL / "tokenizer.json"),
    "chat_template": str(DEMO_MODEL / "chat_template.jinja"),
}
BASE: dict[str, Any] = {
    "listen": {"addresses": ["127.0.0.1:8080"], "tls": "off"},
    "auth": "none",
    "workers": 1,
    "models": [DEMO],
    "replicas": [{"url": "https://r0", "model": "m"}],
}


def config(**sections: Any) -> Config:
    return convert({**BASE, **sections}, Config, "/")


@pytest.fixture(scope="module")
def first() -> Prepared:
    return prepare(config())


def test_the_first_one_is_generation_1_and_makes_what_is_shared(first: Prepared) -> None:
    assert first.generation == 1
    shared = Shared.make(1, b"secret of a predecessor")
    assert prepare(config(), shared).shared is shared
    assert shared.secret == b"secret of a predecessor"
    assert len(first.shared.secret) == 32


def test_the_next_one_shares_what_has_not_changed(first: Prepared) -> None:
    later = prepare(config(limits={"rules": []}, drain_s=1.0), previous=first)
    assert later.generation == 2
    assert later.shared is first.shared
    assert later.prompter is first.prompter
    assert later.upstream_tls == first.upstream_tls
    assert later.config.drain_s == 1.0
    assert later.marks != first.marks
    assert (later.marks.auth, later.marks.hashing) == (first.marks.auth, first.marks.hashing)


def test_only_changed_replicas_get_another_context(first: Prepared, tmp_path: Path) -> None:
    files = make_certificate(tmp_path)
    two = [
        {"url": "https://r0", "model": "m"},
        {"url": "https://r1", "model": "m", "tls": {"ca": str(files.authority)}},
        {"url": "http://r2", "model": "m"},
    ]
    second = prepare(config(replicas=two), previous=first)
    assert second.upstream_tls.keys() == {"r0:443", "r1:443"}
    assert second.upstream_tls["r0:443"] is first.upstream_tls["r0:443"]
    os.utime(files.authority, ns=(1, 1))
    third = prepare(config(replicas=two), previous=second)
    assert third.upstream_tls["r0:443"] is second.upstream_tls["r0:443"]
    assert third.upstream_tls["r1:443"] is not second.upstream_tls["r1:443"]
    assert prepare(config(), previous=third).upstream_tls.keys() == {"r0:443"}


def test_only_changed_issuers_get_another_fetcher(first: Prepared, tmp_path: Path) -> None:
    issuers, issuer = [], Issuer("a", "x")
    for name in ("a", "b"):
        path = tmp_path / f"{name}.json"
        path.write_bytes(issuer.key_set())
        issuers.append({"issuer": name, "audiences": ["x"], "jwks": {"file": str(path)}})
    second = prepare(config(auth={"issuers": issuers}), previous=first)
    assert first.fetchers == {}
    issuer.rotate()
    (tmp_path / "b.json").write_bytes(issuer.key_set())
    third = prepare(config(auth={"issuers": issuers}), previous=second)
    assert third.fetchers["a"] is second.fetchers["a"]
    assert third.fetchers["b"] is not second.fetchers["b"]
    assert third.marks.auth != second.marks.auth


def test_every_fault_names_its_section_and_leaves_the_previous_one(first: Prepared) -> None:
    for sections, place in (
        ({"workers": 2}, r"\$\.workers: was 1 and is 2; it needs a restart"),
        ({"models": [{"name": "m", "tokenizer": __file__}]}, r"\$\.models: "),
        (
            {"auth": {"issuers": [{"issuer": "i", "audiences": ["x"], "jwks": {"file": "/no"}}]}},
            r"\$\.auth: ",
        ),
        (
            {"replicas": [{"url": "https://r", "model": "m", "tls": {"ca": __file__}}]},
            r"\$\.replicas: ",
        ),
        ({"replicas": [{"url": "http://r", "model": "m", "api_key": "env:NO_KEY"}]}, "NO_KEY"),
    ):
        with pytest.raises(ConfigError, match=place):
            prepare(config(**sections), previous=first)
    assert prepare(config(), previous=first).generation == 2


def test_certificates_are_staged_and_shown_by_commit(tmp_path: Path) -> None:
    files = make_certificate(tmp_path)
    tls = {"certificate": str(files.certificate), "key": str(files.key)}
    listen = {**BASE["listen"], "tls": tls}
    first = prepare(config(listen=listen))
    first.commit()
    assert first.tls is not None
    assert first.tls_staged is None
    make_certificate(tmp_path)
    second = prepare(config(listen=listen), previous=first)
    assert second.tls is first.tls
    assert second.tls_staged is not None
    second.commit()
    assert second.tls_warnings() == first.tls_warnings() == []
