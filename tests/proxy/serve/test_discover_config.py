from __future__ import annotations

from typing import Any

import pytest

from core.loading import ConfigProblems, convert
from proxy.serve.discover_config import DiscoverConfig, DnsConfig, server_address


def discover(**values: Any) -> DiscoverConfig:
    return convert({"model": "m", **values}, DiscoverConfig, "/etc")


def test_what_is_asked() -> None:
    assert discover(dns="vllm.internal", port=8000).queries == (
        "A vllm.internal",
        "AAAA vllm.internal",
    )
    assert discover(srv="_http._tcp.vllm.svc.").queries == ("SRV _http._tcp.vllm.svc.",)
    assert discover(dns="vllm.internal", port=8000, weight=2.0, most=3).weight == 2


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({}, "$: expected either"),
        ({"dns": "a", "srv": "_http._tcp.a", "port": 1}, "$: expected either"),
        ({"dns": "a"}, "$: addresses have no port"),
        ({"dns": "10.0.0.1", "port": 1}, "$.dns: expected a DNS name"),
        ({"dns": "a..b", "port": 1}, "$.dns: expected a DNS name"),
        ({"dns": "a b", "port": 1}, "$.dns: expected a DNS name"),
        ({"dns": f"{'a' * 64}.b", "port": 1}, "$.dns: expected a DNS name"),
        ({"dns": "a." * 130, "port": 1}, "$.dns: expected a DNS name"),
        ({"dns": "a\n", "port": 1}, "$.dns: expected a DNS name"),
        ({"srv": "vllm.svc"}, "$.srv: expected a service"),
        ({"srv": "_http._tcp."}, "$.srv: expected a service"),
        ({"srv": "_http._tcp.a", "port": 1}, "$.port: the SRV records"),
        ({"dns": "a", "port": 1, "tls": {}}, "$.tls: only with"),
        ({"dns": "a", "port": 0}, "$.port: "),
        ({"dns": "a", "port": 1, "url": "http://a"}, "$: unknown key"),
    ],
)
def test_forms(values: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigProblems) as caught:
        discover(**values)
    assert str(caught.value).startswith(fault)


def test_name_servers_are_addresses() -> None:
    servers = ("10.0.0.10", "127.0.0.1:5353", "::1", "[::1]:5353")
    assert [server_address(text) for text in servers] == [
        ("10.0.0.10", 53),
        ("127.0.0.1", 5353),
        ("::1", 53),
        ("::1", 5353),
    ]
    assert convert({"servers": list(servers)}, DnsConfig, "/").servers == servers


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"servers": ["10.0.0.1", "dns.example"]}, "$.servers[1]: expected the address"),
        ({"servers": ["dns.example:53"]}, "$.servers[0]: expected the address"),
        ({"servers": ["10.0.0.1:0"]}, "$.servers[0]: expected the address"),
        ({"min_s": 10, "max_s": 5}, "$.max_s: is less"),
        ({"timeout_s": 0}, "$.timeout_s"),
    ],
)
def test_how_it_is_asked(values: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigProblems) as caught:
        convert(values, DnsConfig, "/")
    assert str(caught.value).startswith(fault)
