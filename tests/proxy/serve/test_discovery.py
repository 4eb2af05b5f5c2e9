from __future__ import annotations

import pytest

from core.errors import ConfigError
from core.loading import parse
from proxy.serve.config import Config
from proxy.serve.discover_config import DiscoverConfig, DnsConfig
from proxy.serve.discovery import cut_short, described, merged, nothing_of

TEXT = b"""
listen: {addresses: ["127.0.0.1:8080"], tls: off}
auth: none
models: [{name: m}]
replicas: [{url: "http://a:1", model: m}]
replicas_file: more.yaml
"""
MORE = (
    "replicas:\n- {url: 'http://b:1', model: m, id: gr\u00fcn}\n- {url: 'http://c:1', model: m}\n"
)


def config(text: bytes) -> Config:
    return parse(text, "/etc/headrace.yaml", Config)


def ids(config: Config) -> list[str]:
    return [replica.replica.id for replica in config.replicas]


def test_those_of_the_file_come_after_those_of_the_configuration() -> None:
    more = MORE.replace("gr\u00fcn", "b2").encode()
    whole = config(merged(TEXT, "/etc", ("/etc/more.yaml", more), ()))
    assert ids(whole) == ["a:1", "b2", "c:1"]
    assert whole.listen == config(TEXT).listen
    assert whole.active == whole.replicas


def test_a_file_may_have_none() -> None:
    assert ids(config(merged(TEXT, "/etc", ("/etc/more.yaml", b"replicas: []"), ()))) == ["a:1"]


def test_drained_ones_stay_listed_wherever_they_are_from() -> None:
    more = b"replicas: [{url: 'http://b:1', model: m, drain: true}, {url: 'http://c:1', model: m}]"
    whole = config(merged(TEXT, "/etc", ("/etc/more.yaml", more), {"a:1", "gone:1"}))
    assert ids(whole) == ["a:1", "b:1", "c:1"]
    assert [replica.replica.id for replica in whole.active] == ["c:1"]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (MORE.encode(), "/etc/more.yaml: $.replicas[0].id: "),
        (b"replicas: {}", "/etc/more.yaml: $.replicas: expected "),
        (b"[1]", "/etc/more.yaml: \\$: expected "),
        (b"replicas: [", "/etc/more.yaml: "),
        (b"\xff", "/etc/more.yaml is not UTF-8 text"),
    ],
)
def test_a_bad_file_is_named(content: bytes, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        merged(TEXT, "/etc", ("/etc/more.yaml", content), ())
    assert str(caught.value).startswith(fault.replace("\\", ""))


LOOKED_FOR = b"""
listen: {addresses: ["127.0.0.1:8080"], tls: off}
auth: none
models: [{name: m}, {name: n}]
replicas: [{url: "http://10.0.0.1:8000", model: m, weight: 2}]
discover:
- {dns: vllm.internal, port: 8000, model: m, weight: 0.5, most: 3}
- {srv: _http._tcp.n.svc, model: n, scheme: https, max_in_flight: 4}
- {dns: n.internal, port: 8443, model: n, scheme: https, tls: {verify: false}}
"""
FOUND = {
    "A vllm.internal": ("10.0.0.1", "10.0.0.2"),
    "AAAA vllm.internal": ("fd00::1", "fd00::2"),
    "SRV _http._tcp.n.svc": ("n-0.n.svc:9000", "n-1.n.svc:9000"),
    "A n.internal": ("10.0.0.9",),
    "A of.another": ("10.0.0.8",),
}


def test_those_that_dns_names_are_replicas_like_others() -> None:
    whole = config(merged(LOOKED_FOR, "/etc", None, {"n-1.n.svc:9000"}, FOUND))
    assert ids(whole) == [
        "10.0.0.1:8000",
        "10.0.0.2:8000",
        "[fd00::1]:8000",
        "n-0.n.svc:9000",
        "n-1.n.svc:9000",
        "10.0.0.9:8443",
    ]
    by_id = {replica.replica.id: replica for replica in whole.replicas}
    assert by_id["10.0.0.1:8000"].weight == 2, "what is listed already is not found"
    assert by_id["10.0.0.2:8000"].weight == 0.5
    named = by_id["n-0.n.svc:9000"]
    assert (named.url, named.model, named.max_in_flight) == ("https://n-0.n.svc:9000", "n", 4)
    tls = by_id["10.0.0.9:8443"].tls
    assert tls is not None
    assert (tls.server_name, tls.verify) == ("n.internal", False)
    assert "n-1.n.svc:9000" not in [replica.replica.id for replica in whole.active]
    assert whole.discover == config(LOOKED_FOR).discover


def test_nothing_need_be_found_yet() -> None:
    assert ids(config(merged(LOOKED_FOR, "/etc", None, (), {}))) == ["10.0.0.1:8000"]


def test_that_an_answer_is_too_long_is_said() -> None:
    first, second, _ = config(LOOKED_FOR).discover
    assert isinstance(first, DiscoverConfig)
    assert cut_short(first, FOUND) == "vllm.internal: 4 hosts, of which `most: 3` are taken"
    assert cut_short(second, FOUND) == ""


def test_what_it_means_is_said() -> None:
    first, second, _ = config(LOOKED_FOR).discover
    assert described(first, DnsConfig()) == (
        "m: A and AAAA records of vllm.internal, port 8000, http, 3 at most; asked of the servers "
        "of /etc/resolv.conf as their TTL says, every 5 to 60 s"
    )
    said = described(second, DnsConfig(servers=("10.0.0.10",), max_s=30))
    assert "SRV records of _http._tcp.n.svc, https" in said
    assert "asked of 10.0.0.10" in said


def test_that_there_is_nothing_is_said_once_all_is_known() -> None:
    source = config(LOOKED_FOR).discover[0]
    nothing: dict[str, tuple[str, ...]] = {"A vllm.internal": ()}
    assert nothing_of(source, nothing) == ""
    nothing["AAAA vllm.internal"] = ()
    assert nothing_of(source, nothing) == "vllm.internal: there is no record"
    assert nothing_of(source, FOUND) == ""
