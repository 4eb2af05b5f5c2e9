from __future__ import annotations

from typing import Any

import pytest

from auth.certificates import CertificateCallers, CertificateConfig
from auth.key_config import QuotaConfig
from core.errors import ConfigError
from core.exchange import ClientCertificate
from core.loading import convert
from core.principal import Principal, Quota

NOW = 1_700_000_000.0
SHOWN = ClientCertificate(
    subject="CN=agent-7,OU=ml,O=Acme",
    dns_names=("agent-7.Agents.example", "other.example"),
    uri_names=("spiffe://acme.example/ns/ml/sa/agent",),
    fingerprint="ab" * 32,
    not_after=NOW + 1,
)


def find(now: float = NOW, **rule: Any) -> Principal | None:
    return CertificateCallers([CertificateConfig(tenant="acme", **rule)]).find(SHOWN, now)


@pytest.mark.parametrize(
    ("rule", "user"),
    [
        ({"subject": "CN=agent-7,OU=ml,O=Acme"}, "CN=agent-7,OU=ml,O=Acme"),
        ({"subject": "CN=*,OU=ml,O=Acme"}, "CN=agent-7,OU=ml,O=Acme"),
        ({"dns": "*.agents.example"}, "agent-7.Agents.example"),
        ({"dns": "other.example"}, "other.example"),
        ({"uri": "spiffe://acme.example/ns/*/sa/agent"}, "spiffe://acme.example/ns/ml/sa/agent"),
        ({"uri": "spiffe://acme.example/ns/ml/sa/agent", "user": "bob"}, "bob"),
        ({"fingerprint": "AB" * 32}, "ab" * 32),
    ],
)
def test_names_that_fit(rule: dict[str, Any], user: str) -> None:
    assert find(**rule) == Principal("acme", user)


@pytest.mark.parametrize(
    "rule",
    [
        {"subject": "CN=*"},
        {"subject": "CN=*,O=Acme"},
        {"subject": "CN=agent-7,OU=ml,O=acme"},
        {"dns": "agent-*.example"},
        {"dns": "agents.example"},
        {"dns": "agent-7xagents.example"},
        {"uri": "spiffe://acme.example/*/sa/agent"},
        {"uri": "spiffe://acme.example/ns/ml/sa/agen"},
        {"fingerprint": "ac" * 32},
    ],
)
def test_names_that_do_not(rule: dict[str, Any]) -> None:
    assert find(**rule) is None


def test_an_expired_certificate_is_nobodys() -> None:
    assert find(NOW + 1, dns="other.example") is None


def test_the_first_rule_that_fits() -> None:
    rules = [
        CertificateConfig(dns="none.example", tenant="a"),
        CertificateConfig(
            dns="other.example",
            tenant="b",
            tier="gold",
            organisation="o",
            groups=("ml",),
            models=("m",),
            limits={"r": QuotaConfig(limit=3)},
            priority=-7,
        ),
        CertificateConfig(dns="other.example", tenant="c"),
    ]
    assert CertificateCallers(rules).find(SHOWN, NOW) == Principal(
        "b",
        "other.example",
        "gold",
        frozenset({"m"}),
        "o",
        "",
        (("r", Quota(3)),),
        frozenset({"ml"}),
        -7,
    )


@pytest.mark.parametrize(
    "rule",
    [
        {"tenant": "a"},
        {"tenant": "a", "dns": "b", "uri": "c"},
        {"tenant": "", "dns": "b"},
        {"tenant": "a", "fingerprint": "ab"},
        {"tenant": "a", "dns": "b", "priority": 1001},
    ],
)
def test_rules_that_are_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        convert(rule, CertificateConfig, "/")
