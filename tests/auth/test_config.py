from __future__ import annotations

from typing import Any

import pytest

from auth.config import AuthConfig
from core.errors import ConfigError
from core.loading import convert


def load(*, jwks: dict[str, Any] | None = None, **changes: Any) -> AuthConfig:
    issuer = {
        "issuer": "https://id.example",
        "audiences": ["headrace"],
        "jwks": {"url": "https://id.example/jwks.json"} if jwks is None else jwks,
    } | changes
    return convert({"issuers": [issuer]}, AuthConfig, "/etc/headrace")


def test_what_a_user_writes() -> None:
    config = load(claims={"tenant": "org_id", "tier": "plan", "models": "models"})
    (issuer,) = config.issuers
    assert issuer.claims.tenant == "org_id"
    assert issuer.algorithms == ("RS256", "ES256", "EdDSA", "PS256")
    assert (issuer.leeway_s, issuer.jwks.cool_down_s, issuer.jwks.refresh_s) == (30, 10, 300)


def test_a_file_is_relative_to_the_configuration() -> None:
    (issuer,) = load(jwks={"file": "jwks.json"}).issuers
    assert issuer.jwks.file == "/etc/headrace/jwks.json"


@pytest.mark.parametrize("algorithm", ["HS256", "HS512", "none", "ES256K", "rs256", ""])
def test_only_asymmetric_algorithms(algorithm: str) -> None:
    with pytest.raises(ConfigError, match=r"\$\.issuers\[0\]\.algorithms\[1\]"):
        load(algorithms=["RS256", algorithm])


@pytest.mark.parametrize(
    "url",
    [
        "http://id.example/jwks.json",
        "file:///etc/passwd",
        "ftp://id.example/jwks.json",
        "data:application/json,{}",
        "https://user:hunter2@id.example/jwks.json",
        "https://user@id.example/jwks.json",
        "https://id.example/jwks.json#part",
        "https://id.example:99999/jwks.json",
        "https://[::1/jwks.json",
        "https:///jwks.json",
        "https://id.example/jw ks.json",
        "https://169.254.169.254/latest/meta-data",
        "https://[fe80::1]/jwks.json",
        "http://127.0.0.1.id.example/jwks.json",
        "jwks.json",
        "",
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"\$\.issuers\[0\]\.jwks\.url") as caught:
        load(jwks={"url": url})
    assert "hunter2" not in caught.value.problems[0].sentence


@pytest.mark.parametrize(
    "jwks",
    [
        {"url": "http://127.0.0.1:8080/jwks.json"},
        {"url": "http://localhost/jwks.json"},
        {"url": "http://[::1]:8080/jwks.json"},
        {"url": "http://id.example/jwks.json", "allow_http": True},
        {"url": "https://id.example:8443/a/b?c=d"},
    ],
)
def test_urls_that_are_fine(jwks: dict[str, Any]) -> None:
    (issuer,) = load(jwks=jwks).issuers
    assert issuer.jwks.url == jwks["url"]


@pytest.mark.parametrize(
    ("jwks", "path"),
    [
        ({"url": "https://a.example/", "file": "b"}, r"jwks: "),
        ({"url": "https://a.example/", "stale_for_s": 3600}, r"jwks\.stale_for_s"),
        ({"url": "https://a.example/", "cool_down_s": 0}, r"jwks\.cool_down_s"),
        ({"url": "https://a.example/", "refresh_s": 5}, r"jwks\.refresh_s"),
        ({"url": "https://a.example/", "timeout_s": 0}, r"jwks\.timeout_s"),
    ],
)
def test_key_set_settings_that_are_refused(jwks: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError, match=path):
        load(jwks=jwks)


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": ""},
        {"audiences": []},
        {"audiences": [""]},
        {"algorithms": []},
        {"types": []},
        {"leeway_s": 61},
        {"leeway_s": -1},
        {"max_lifetime_s": 0},
    ],
)
def test_issuer_settings_that_are_refused(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(ConfigError, match=rf"\$\.issuers\[0\]\.{name}"):
        load(**changes)


@pytest.mark.parametrize("claim", ["tenant", "tenant_fallback", "subject", "tier", "models"])
def test_a_claim_has_a_name(claim: str) -> None:
    with pytest.raises(ConfigError, match=rf"issuers\[0\]\.claims\.{claim}: expected the name of"):
        load(claims={claim: ""})


def test_an_issuer_is_given_once() -> None:
    issuer = {"issuer": "a", "audiences": ["b"], "jwks": {"file": "c"}}
    with pytest.raises(ConfigError, match=r"issuers\[1\]\.issuer: 'a' is given twice"):
        convert({"issuers": [issuer, issuer]}, AuthConfig, "/")
    with pytest.raises(ConfigError, match=r"issuers"):
        convert({"issuers": []}, AuthConfig, "/")


def test_an_issuer_may_tell_itself_where_its_keys_are() -> None:
    config = convert(
        {"issuers": [{"issuer": "https://id.example", "audiences": ["a"]}]}, AuthConfig, "/"
    )
    assert config.issuers[0].is_discovered
    assert not load(jwks={"file": "jwks.json"}).issuers[0].is_discovered


@pytest.mark.parametrize("issuer", ["id.example", "http://id.example", "https://a@id.example"])
def test_an_issuer_that_is_no_url_cannot(issuer: str) -> None:
    with pytest.raises(ConfigError, match=r"\.issuer: expected .*or give `jwks`"):
        convert({"issuers": [{"issuer": issuer, "audiences": ["a"]}]}, AuthConfig, "/")


@pytest.mark.parametrize(
    "throttle",
    [{"requests_per_s": 0}, {"failures_per_minute": -1}, {"failures_burst": 0}],
)
def test_throttles_that_are_refused(throttle: dict[str, Any]) -> None:
    (name,) = throttle
    with pytest.raises(ConfigError, match=rf"\$\.throttle\.{name}: expected"):
        convert({"throttle": throttle, "api_keys": {"file": "k"}}, AuthConfig, "/")
