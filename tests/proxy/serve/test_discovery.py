from __future__ import annotations

import pytest

from core.errors import ConfigError
from core.loading import parse
from proxy.serve.config import Config
from proxy.serve.discovery import merged

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
