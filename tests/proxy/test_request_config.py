from __future__ import annotations

from typing import Any

import pytest

from core.errors import ConfigError
from core.loading import convert
from proxy.call import NEVER_FORWARDED
from proxy.request_config import RequestsConfig


def config(**fields: Any) -> RequestsConfig:
    return convert(fields, RequestsConfig, "/")


def test_nothing_is_asked_by_default() -> None:
    assert config() == RequestsConfig()


@pytest.mark.parametrize("name", sorted(NEVER_FORWARDED))
def test_what_can_never_be_allowed_is_told(name: str) -> None:
    sentence = rf"\$\.rules\[0\]\.allow_fields\[1\]: `{name}` can never be allowed: "
    with pytest.raises(ConfigError, match=sentence):
        config(rules=[{"allow_fields": ["priority", name]}])


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"allow_fields": ["vllm_xarg"]}, "$.allow_fields[0]: `vllm_xarg` is not one of those"),
        ({"allow_fields": ["temperature"]}, "these are: kv_transfer_params, priority, vllm_xargs"),
        ({"deny_fields": ["a", "model"]}, "$.deny_fields[1]: expected the name of a field"),
        ({"deny_fields": [""]}, "$.deny_fields[0]: expected the name of a field"),
        ({"deny_fields": ["priority"], "allow_fields": ["priority"]}, "is in `deny_fields` too"),
        ({"max_choices": 0}, "$.max_choices: expected"),
        ({"max_output_tokens": 0}, "$.max_output_tokens: expected"),
        ({"rules": [{"models": ["m"]}]}, "$.rules[0]: expected `deny_fields`"),
        ({"rules": [{"routes": ["/v1/models"], "max_choices": 1}]}, "$.rules[0].routes[0]"),
        (
            {"deny_fields": ["priority"], "rules": [{"allow_fields": ["priority"]}]},
            "$.rules[0].allow_fields: `priority` is denied in general",
        ),
    ],
)
def test_faults_are_named(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**fields)
    assert fault in str(caught.value)


def test_a_rule_may_allow_what_its_own_list_no_longer_denies() -> None:
    rule = {"deny_fields": [], "allow_fields": ["priority"]}
    assert config(deny_fields=["priority"], rules=[rule]).rules[0].deny_fields == ()
