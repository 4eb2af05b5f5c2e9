from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import BadRequest
from core.loading import convert
from core.prompt import Prompt
from proxy.body_rules import BodyRules, make_body_rules
from proxy.call import Call, parse_call
from proxy.request_config import RequestsConfig
from routing.config import ModelConfig

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MODELS = [ModelConfig(name="m", aliases=("alias",), max_model_len=1000), ModelConfig(name="other")]
PROMPT = Prompt("m", 40, 40, True, (), 64)


def rules(**fields: Any) -> BodyRules:
    return BodyRules(convert(fields, RequestsConfig, "/"), MODELS)


def take(by: BodyRules, model: str = "m", route: str = CHAT, **fields: Any) -> Call:
    """The call as it goes on. Raises BadRequest."""
    call = parse_call(orjson.dumps({"model": model, **fields}), by.refused)
    by.of(model, route).check(call)
    return call


def fault(by: BodyRules, model: str = "m", route: str = CHAT, **fields: Any) -> tuple[str, str]:
    with pytest.raises(BadRequest) as caught:
        take(by, model, route, **fields)
    assert caught.value.param is not None
    return caught.value.param, caught.value.message


def test_by_default_there_are_none() -> None:
    assert make_body_rules(RequestsConfig(), MODELS) is None
    assert make_body_rules(RequestsConfig(max_choices=1), MODELS) is not None


def test_a_field_is_denied() -> None:
    by = rules(deny_fields=["logit_bias", "chat_template_kwargs"])
    message = "`logit_bias` is not accepted here: the rule is `requests.deny_fields`."
    assert fault(by, logit_bias={"1": 2}) == ("logit_bias", message)
    assert fault(by, chat_template_kwargs={})[0] == "chat_template_kwargs"
    assert take(by, logit_bias=None, seed=1).document == {"model": "m", "seed": 1}


def test_a_field_is_allowed_where_a_rule_says_so_alone() -> None:
    by = rules(rules=[{"models": ["alias"], "routes": [CHAT], "allow_fields": ["vllm_xargs"]}])
    assert take(by, vllm_xargs={"a": 1}).document["vllm_xargs"] == {"a": 1}
    for model, route in (("m", COMPLETIONS), ("other", CHAT)):
        name, message = fault(by, model, route, vllm_xargs={"a": 1})
        assert name == "vllm_xargs"
        assert message.endswith("it steers the engine's internals.")
    assert fault(by, priority=1)[0] == "priority"


def test_the_first_rule_that_fits_holds_and_leaves_the_rest_as_in_general() -> None:
    by = rules(
        deny_fields=["logprobs"],
        max_choices=4,
        rules=[
            {"models": ["m"], "routes": [COMPLETIONS], "max_choices": 2},
            {"models": ["m"], "max_choices": 3, "deny_fields": []},
            {"max_choices": 100},
        ],
    )
    most = {("m", COMPLETIONS): 2, ("m", CHAT): 3, ("other", CHAT): 100}
    for (model, route), number in most.items():
        assert take(by, model, route, n=number).choices == number
        assert fault(by, model, route, n=number + 1)[0] == "n"
    assert take(by, logprobs=True).document["logprobs"] is True
    assert "`requests.deny_fields`" in fault(by, "m", COMPLETIONS, logprobs=True)[1]
    assert "`requests.rules[1].max_choices`" in fault(by, n=4)[1]


def test_choices_and_prompts_count_together() -> None:
    by = rules(max_choices=4)
    assert take(by, route=COMPLETIONS, n=2, prompt=["a", "b"]).choices == 2
    assert fault(by, route=COMPLETIONS, n=2, prompt=["a", "b", "c"])[0] == "n"
    assert fault(by, route=COMPLETIONS, n=1, best_of=5)[0] == "best_of"
    assert fault(by, route=COMPLETIONS, prompt=[[1]] * 5)[0] == "prompt"
    assert take(by, route=COMPLETIONS, prompt=[1] * 500)
    assert take(by, route=COMPLETIONS, prompt=[])


def test_output_is_bounded_over_all_choices() -> None:
    by = rules(max_output_tokens=100)
    assert take(by, n=4, max_tokens=25)
    assert take(by, max_completion_tokens=100, max_tokens=5000)
    assert fault(by, n=4, max_tokens=26) == (
        "max_tokens",
        "`max_tokens` of 26 times 4 answers is more than the 100 tokens that are accepted here "
        "(`requests.max_output_tokens`).",
    )
    assert fault(by, max_completion_tokens=101, max_tokens=1)[0] == "max_completion_tokens"
    assert fault(by, max_completion_tokens=None, max_tokens=101)[0] == "max_tokens"
    assert fault(by, route=COMPLETIONS, prompt=["a"] * 2, max_tokens=51)[0] == "max_tokens"
    assert fault(by, n=101)[0] == "n"
    assert fault(by, route=COMPLETIONS, prompt=["a"] * 101)[0] == "prompt"


@pytest.mark.parametrize(
    ("model", "fields", "longest", "each"),
    [
        ("other", {}, 40, 5000),
        ("other", {"n": 3, "max_completion_tokens": None}, 40, 1666),
        ("m", {}, 40, 960),
        ("m", {}, 1000, 1),
        ("m", {"n": 50}, 40, 100),
    ],
)
def test_who_sets_no_bound_is_given_one(
    model: str, fields: dict[str, Any], longest: int, each: int
) -> None:
    by = rules(max_output_tokens=5000)
    call = take(by, model, **fields)
    assert by.of(model, CHAT).bound_output(call, PROMPT._replace(longest=longest)) == each
    assert orjson.loads(call.upstream_body(model, ""))["max_tokens"] == each


def test_a_bound_of_the_client_is_kept_and_without_a_rule_none_is_set() -> None:
    by = rules(max_output_tokens=5000)
    assert by.of("m", CHAT).bound_output(take(by, max_tokens=7), PROMPT) == 7
    call = take(by := rules(max_choices=5))
    assert by.of("m", CHAT).bound_output(call, PROMPT) is None
    assert call.document == {"model": "m"}


COUNTS = st.one_of(st.none(), st.integers(0, 60))


@given(
    n=st.one_of(st.none(), st.integers(1, 8)),
    best_of=st.one_of(st.none(), st.integers(1, 8)),
    max_tokens=COUNTS,
    max_completion_tokens=COUNTS,
    prompts=st.integers(1, 4),
)
def test_a_replica_is_never_asked_for_more(prompts: int, **fields: Any) -> None:
    by = rules(max_output_tokens=60, max_choices=16)
    prompt = ["a"] * prompts
    try:
        call = take(by, route=COMPLETIONS, prompt=prompt, **fields)
    except BadRequest:
        return
    each = by.of("m", COMPLETIONS).bound_output(call, PROMPT)
    sent = orjson.loads(call.upstream_body("m", ""))
    answers = prompts * max(sent.get("n") or 1, sent.get("best_of") or 1)
    bounds = [sent[x] for x in ("max_tokens", "max_completion_tokens") if sent.get(x) is not None]
    assert set(bounds) == {each}
    assert answers <= 16
    assert answers * max(bounds) <= 60
