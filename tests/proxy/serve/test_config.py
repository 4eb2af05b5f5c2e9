"""The composed configuration: what must hold between its sections."""

from __future__ import annotations

from typing import Any

import pytest

from core.loading import ConfigProblems, convert
from proxy.serve.config import Config
from proxy.serve.cpus import usable_cpus


def document(**changes: Any) -> dict[str, Any]:
    return {
        "listen": {"addresses": ["127.0.0.1:8080"], "tls": "off"},
        "auth": "none",
        "workers": 1,
        "models": [{"name": "qwen3", "aliases": ["gpt-4o"]}],
        "replicas": [{"url": "http://127.0.0.1:8000", "model": "qwen3"}],
        **changes,
    }


def made(**changes: Any) -> Config:
    return convert(document(**changes), Config, "/etc")


RULE = {"name": "all", "limit": 60}
PRICE = {"input": 1, "output": 1}
TWO_MODELS = [{"name": "a"}, {"name": "b", "aliases": ["c"]}]


def test_the_smallest_configuration() -> None:
    config = made()
    assert config.workers == 1
    assert (config.propagation_s, config.drain_s) == (5, 600)
    assert config.limits is None
    assert config.admin is None


@pytest.mark.parametrize("key", ["listen", "auth", "models"])
def test_what_cannot_be_left_out(key: str) -> None:
    without = document()
    del without[key]
    with pytest.raises(ConfigProblems, match=rf"\$: missing key `{key}`"):
        convert(without, Config, "/etc")


def test_replicas_are_listed_somewhere() -> None:
    without = document()
    del without["replicas"]
    with pytest.raises(ConfigProblems, match="no replica serves"):
        convert(without, Config, "/etc")
    config = convert({**without, "replicas_file": "replicas.yaml"}, Config, "/etc")
    assert (config.replicas, config.replicas_file) == ((), "/etc/replicas.yaml")


def test_replicas_may_be_looked_for() -> None:
    without = document()
    del without["replicas"]
    source = {"dns": "vllm.internal", "port": 8000}
    config = convert({**without, "discover": [source | {"model": "qwen3"}]}, Config, "/etc")
    assert (config.replicas, config.likely_replicas) == ((), 16)
    assert made().likely_replicas == 1
    with pytest.raises(ConfigProblems) as caught:
        made(discover=[source | {"model": "qwen"}])
    (line,) = str(caught.value).splitlines()
    assert line == "$.discover[0].model: no model is named `qwen`; did you mean `qwen3`?"


def test_models_that_are_served_elsewhere() -> None:
    models = [{"name": "a", "fallback": ["c"]}, {"name": "c"}, {"name": "d", "adapter_of": "c"}]
    replicas = [
        {"url": "http://a:1", "model": "a"},
        {"url": "https://api.example", "model": "c", "engine": "openai"},
    ]
    assert made(models=models, replicas=replicas).models_elsewhere == {"c", "d"}


def test_one_that_is_drained_is_not_active() -> None:
    replicas = [
        {"url": "http://a:1", "model": "qwen3", "drain": True},
        {"url": "http://b:1", "model": "qwen3"},
    ]
    config = made(replicas=replicas)
    assert [replica.url for replica in config.active] == ["http://b:1"]


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        (
            {"replicas": [{"url": "http://a:1", "model": "qwen"}]},
            [
                "$.replicas[0].model: no model is named `qwen`; did you mean `qwen3`?",
                "$.models[0]: no replica serves `qwen3`; add one to `replicas`",
            ],
        ),
        (
            {
                "models": [{"name": "a", "aliases": ["b"]}, {"name": "b"}],
                "replicas": [{"url": "http://a:1", "model": m} for m in ("a", "b")],
            },
            [
                "$.models[1].name: `b` already means the model `a` ($.models[0]); a name means one "
                "model",
                "$.replicas[1]: has the same id `a:1` as $.replicas[0]; give each its own `id`",
            ],
        ),
        (
            {
                "models": [{"name": "a"}, {"name": "b", "adapter_of": "a", "multimodal": True}],
                "replicas": [{"url": "http://a:1", "model": "b"}],
            },
            [
                "$.models[0]: no replica serves `a`; add one to `replicas`",
                "$.replicas[0].model: `b` is an adapter; name `a`",
                "$.models[1].multimodal: is that of `a`, which this adapts; remove it",
            ],
        ),
        (
            {
                "models": [{"name": "a"}, {"name": "b", "adapter_of": "c"}],
                "replicas": [{"url": "http://a:1", "model": "a"}],
            },
            [
                "$.models[1].adapter_of: `c` is no model that has replicas; name one that is none "
                "itself",
            ],
        ),
        (
            {
                "models": [
                    {"name": "a", "canaries": [{"to": "a", "percent": 5}], "fallback": ["bb"]},
                    {"name": "b"},
                ],
                "replicas": [{"url": f"http://{name}:1", "model": name} for name in "ab"],
            },
            [
                "$.models[0].canaries[0].to: `a` is the model itself; name another one",
                "$.models[0].fallback[0]: no model is named `bb`; did you mean `b`?",
            ],
        ),
        (
            {
                "listen": {
                    "addresses": ["127.0.0.1:8080"],
                    "tls": "off",
                    "health_path": "/healthz",
                },
                "passthrough": [
                    {"path": "/v1/audio/speech", "model": "qwn3"},
                    {"path": "/v1/audio/speech"},
                    {"path": "/healthz"},
                ],
            },
            [
                "$.passthrough[0].model: no model is named `qwn3`; did you mean `qwen3`?",
                "$.passthrough[1].path: `/v1/audio/speech` is given twice",
                "$.passthrough[2].path: is $.listen.health_path; give one of them another",
            ],
        ),
        (
            {"limits": {"rules": [RULE | {"match": {"models": ["qwen3", "qwn3"]}}]}},
            ["$.limits.rules[0].match.models[1]: no model is named `qwn3`; did you mean `qwen3`?"],
        ),
        (
            {
                "auth": {
                    "api_keys": {"file": "keys.yaml"},
                    "rules": [{"models": ["qwen3", "qwn3"], "tiers": ["gold"]}],
                }
            },
            ["$.auth.rules[0].models[1]: no model is named `qwn3`; did you mean `qwen3`?"],
        ),
        (
            {
                "auth": {
                    "client_certificates": [{"dns": "a.example", "tenant": "a"}],
                    "revocations": {"redis": True},
                }
            },
            [
                "$.auth.client_certificates: clients are asked for none: see listen.tls",
                "$.auth.revocations.redis: is in the Redis of the limits: give "
                "`limits.store.redis` too",
            ],
        ),
        (
            {"limits": {"prices": {"qwn3": {"input": 1, "output": 1}}}},
            ["$.limits.prices.qwn3: no model is named `qwn3`; did you mean `qwen3`?"],
        ),
        (
            {"limits": {"prices": {"qwen3": PRICE, "gpt-4o": PRICE}}},
            ["$.limits.prices.gpt-4o: `qwen3` is the same model; give one price"],
        ),
        (
            {"usage": {"redis_stream": "usage"}},
            [
                "$.usage.redis_stream: is in the Redis of the limits: give "
                "`limits.store.redis` too",
            ],
        ),
        ({"usage": {}}, ["$.usage: give either `file` or `redis_stream`"]),
        (
            {"routing": {"hosts": {"redis": True}}},
            [
                "$.routing.hosts.redis: is in the Redis of the limits: give "
                "`limits.store.redis` too",
            ],
        ),
        (
            {"admin": {"address": "127.0.0.1:8080"}},
            [
                "$.admin.address: is also $.listen.addresses[0]; clients must not reach the admin "
                "pages"
            ],
        ),
    ],
)
def test_contradictions_between_sections(changes: dict[str, Any], faults: list[str]) -> None:
    with pytest.raises(ConfigProblems) as caught:
        made(**changes)
    assert str(caught.value).splitlines() == faults


@pytest.mark.parametrize(
    "changes",
    [
        {"workers": 2},
        {"workers": 2, "limits": {"rules": []}},
        {"workers": 2, "limits": {"store": {"redis": {"url": "redis://a"}}, "rules": [RULE]}},
        {"limits": {"rules": [RULE]}},
        {"workers": 2, "limits": {"rules": [RULE]}},
    ],
)
def test_limits_that_hold(changes: dict[str, Any]) -> None:
    assert made(**changes).workers == changes.get("workers", 1)


@pytest.mark.parametrize(
    ("requests", "takes_priority", "fault"),
    [
        (
            {"rules": [{"models": ["gpt-4o", "qwn3"], "max_choices": 1}]},
            False,
            "$.requests.rules[0].models[1]: no model is named `qwn3`; did you mean `qwen3`?",
        ),
        (
            {"allow_fields": ["priority"]},
            True,
            "$.requests.allow_fields: `priority` is the gateway's",
        ),
        (
            {"rules": [{"allow_fields": ["priority"]}]},
            True,
            "$.requests.rules[0].allow_fields: `priority` is the gateway's",
        ),
    ],
)
def test_rules_about_bodies(requests: Any, takes_priority: bool, fault: str) -> None:
    models = [{"name": "qwen3", "aliases": ["gpt-4o"], "takes_priority": takes_priority}]
    with pytest.raises(ConfigProblems) as caught:
        made(models=models, requests=requests)
    assert str(caught.value).startswith(fault)


def test_groups_that_share_caches_are_read() -> None:
    routing = {"secret": "env:X", "share_cache": [["a", "b"], ["c"]]}
    assert made(routing=routing).routing.share_cache == (("a", "b"), ("c",))
    with pytest.raises(ConfigProblems, match=r"\$\.routing\.share_cache: .*organisation"):
        made(routing={"secret": "env:X", "share_cache": "organization"})


def test_limits_may_name_models_by_their_aliases() -> None:
    rule = RULE | {"match": {"models": ["gpt-4o"]}}
    config = made(limits={"rules": [rule, {"name": "b", "limit": 1}], "prices": {"gpt-4o": PRICE}})
    limits = config.named_limits
    assert limits is not None
    assert list(limits.prices) == ["qwen3"]
    assert [found.match.models for found in limits.rules] == [("qwen3",), ()]
    assert made().named_limits is None


def test_by_default_there_is_a_worker_for_each_processor() -> None:
    given = document()
    del given["workers"]
    assert convert(given, Config, "/").workers == min(usable_cpus(), 256)
