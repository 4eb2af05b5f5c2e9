from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import BadRequest
from proxy.call import NEVER_FORWARDED, NOT_FORWARDED, Call, parse_call


def body(**fields: Any) -> bytes:
    return orjson.dumps({"model": "m", **fields})


def outcome(data: bytes) -> Call | BadRequest:
    """The call, or its refusal; nothing else may come of any bytes."""
    try:
        return parse_call(data)
    except BadRequest as error:
        return error


def sent(data: bytes, salt: str = "") -> dict[str, Any]:
    """What the replica reads."""
    document = orjson.loads(parse_call(data).upstream_body("real", salt))
    assert isinstance(document, dict)
    return document


def test_a_call() -> None:
    call = parse_call(body(stream=True, max_tokens=5, n=2, messages=[]))
    assert (call.model, call.stream, call.wants_usage) == ("m", True, False)
    assert (call.max_output_tokens, call.choices) == (5, 2)
    assert orjson.loads(call.upstream_body("real", "salt")) == {
        "model": "real",
        "stream": True,
        "max_tokens": 5,
        "n": 2,
        "messages": [],
        "cache_salt": "salt",
        "stream_options": {"include_usage": True},
    }


def test_what_is_not_known_is_passed_on() -> None:
    fields = {"temperature": 0.5, "seed": 2**63, "x": {"y": [None, True, "\u2028"]}, "prompt": ""}
    assert sent(body(**fields)) == {"model": "real", **fields}


@pytest.mark.parametrize(
    ("options", "wants", "passed"),
    [
        (None, False, {"include_usage": True}),
        ({}, False, {"include_usage": True}),
        ({"include_usage": False}, False, {"include_usage": True}),
        ({"include_usage": None, "x": 1}, False, {"include_usage": True, "x": 1}),
        ({"include_usage": True}, True, {"include_usage": True}),
    ],
)
def test_usage_is_always_asked_for(options: Any, wants: bool, passed: dict[str, Any]) -> None:
    data = body(stream=True, stream_options=options)
    assert parse_call(data).wants_usage is wants
    assert sent(data)["stream_options"] == passed


def test_an_answer_in_one_piece_needs_no_options() -> None:
    assert "stream_options" not in sent(body(stream=False))
    assert "stream_options" not in sent(body())


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, None),
        ({"max_tokens": None}, None),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 3, "max_tokens": 7}, 3),
        ({"max_completion_tokens": None, "max_tokens": 7}, 7),
    ],
)
def test_the_bound_of_the_output(fields: dict[str, Any], most: int | None) -> None:
    assert parse_call(body(**fields)).max_output_tokens == most


def test_a_replica_reads_the_bound_that_is_charged() -> None:
    call = parse_call(body(max_completion_tokens=3, max_tokens=7000))
    sent = orjson.loads(call.upstream_body("m", ""))
    assert (sent["max_completion_tokens"], sent["max_tokens"]) == (3, 3)
    with pytest.raises(BadRequest) as caught:
        parse_call(body(max_completion_tokens=3, max_tokens="7"))
    assert caught.value.param == "max_tokens"


def test_the_number_of_choices() -> None:
    assert parse_call(body()).choices == 1
    assert parse_call(body(n=None, best_of=3)).choices == 3
    assert parse_call(body(n=4, best_of=3)).choices == 4


REFUSED: list[tuple[str, Any]] = [
    *[("model", value) for value in (None, "", 5, ["m"], {"a": 1})],
    *[("stream", value) for value in ("true", 1, 0, [], {})],
    *[("max_tokens", value) for value in (-1, 1.0, "5", True, [], 1e30)],
    *[("max_completion_tokens", value) for value in (-1, 0.5, False)],
    *[("n", value) for value in (0, -1, 129, 1.0, "1", True)],
    *[("best_of", value) for value in (0, 1000, [])],
    ("chat_template", "{{ x }}"),
    ("chat_template", ""),
    ("kv_transfer_params", {}),
    ("cache_salt", "a"),
    ("priority", 0),
    ("prompt_embeds", ["a"]),
    ("vllm_xargs", {"a": 1}),
    ("chat_template_kwargs", "a"),
    ("chat_template_kwargs", []),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_field_that_is_refused_is_named(name: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_call(orjson.dumps({"model": "m", name: value}))
    assert caught.value.param == name
    assert name in caught.value.message


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages", "tools"])
def test_template_arguments_that_are_refused(name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_call(body(chat_template_kwargs={"enable_thinking": True, name: None}))
    assert caught.value.param == f"chat_template_kwargs.{name}"


def test_template_arguments_that_pass() -> None:
    arguments = {"enable_thinking": False}
    assert sent(body(chat_template_kwargs=arguments))["chat_template_kwargs"] == arguments


def test_a_dangerous_field_of_null_is_taken_out() -> None:
    assert sent(body(cache_salt=None, priority=None, chat_template=None)) == {"model": "real"}
    assert sent(body(cache_salt=None), "ours")["cache_salt"] == "ours"


def test_fields_that_a_rule_may_let_through() -> None:
    names = {**NEVER_FORWARDED, **NOT_FORWARDED}
    refused = {name: why for name, why in names.items() if name != "vllm_xargs"}
    call = parse_call(body(vllm_xargs={"a": 1}), refused)
    assert orjson.loads(call.upstream_body("m", ""))["vllm_xargs"] == {"a": 1}
    with pytest.raises(BadRequest):
        parse_call(body(vllm_xargs={"a": 1}, cache_salt="x"), refused)
    with pytest.raises(BadRequest):
        parse_call(body(vllm_xargs={"a": 1}, chat_template_kwargs={"tokenize": True}), refused)


def test_a_priority_is_sent_where_there_is_one() -> None:
    call = parse_call(body(priority=None))
    assert "priority" not in orjson.loads(call.upstream_body("m", ""))
    assert orjson.loads(call.upstream_body("m", "", -5))["priority"] == -5


@pytest.mark.parametrize("options", [[], "a", 1, {"include_usage": 1}, {"include_usage": "a"}])
def test_stream_options_that_are_refused(options: Any) -> None:
    with pytest.raises(BadRequest):
        parse_call(body(stream=True, stream_options=options))


def test_stream_options_without_a_stream_are_refused() -> None:
    with pytest.raises(BadRequest, match="stream_options"):
        parse_call(body(stream_options={"include_usage": True}))


def test_the_last_of_equal_keys_is_read_and_it_alone_is_sent() -> None:
    data = b'{"model":"a","cache_salt":"x","model":"b","n":500,"cache_salt":null,"n":2}'
    call = parse_call(data)
    assert (call.model, call.choices) == ("b", 2)
    forwarded = call.upstream_body("real", "")
    assert forwarded.count(b'"model"') == 1
    assert forwarded.count(b'"n"') == 1
    assert orjson.loads(forwarded) == {"model": "real", "n": 2}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b'"a"',
        b'{"model":"m"',
        b'{"model":"m"}x',
        b'{"model":"m","a":NaN}',
        b'{"model":"m","a":Infinity}',
        b'{"model":"m","a":1e400}',
        b'{"model":"m","a":"\\ud800"}',
        b'{"model":"m","a":"\xff"}',
        b'{"model":"m",}',
        b"{'model':'m'}",
        b'\xef\xbb\xbf{"model":"m"}',
        '{"model":"m"}'.encode("utf-16"),
        b'{"model":"m","a":"\n"}',
        b'{"model":"m"}' + b"\x00",
    ],
)
def test_what_is_not_a_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_call(data)
    assert caught.value.reason == "invalid_json"
    assert len(caught.value.message) < 100


@pytest.mark.parametrize("depth", [10, 100, 240, 253, 254, 255, 300, 1000, 1024, 5000, 100_000])
@pytest.mark.parametrize(("start", "end"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_is_passed_on_or_refused(depth: int, start: bytes, end: bytes) -> None:
    data = b'{"model":"m","x":' + start * depth + b"1" + end * depth + b"}"
    call = outcome(data)
    if isinstance(call, BadRequest):
        assert depth > 240
    else:
        assert call.upstream_body("m", "") == data
        assert depth < 300


def test_many_brackets_are_not_deep_nesting() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "[{"}]}] * 200
    assert sent(body(messages=messages))["messages"] == messages


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text() | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(document=st.dictionaries(st.text('abx\u2028\u00e9 "\\', max_size=8), JSON, max_size=4))
def test_what_is_forwarded_is_what_was_read(document: dict[str, Any]) -> None:
    data = orjson.dumps({**document, "model": "m"})
    assert sent(data) == {**document, "model": "real"}


NAMES = st.sampled_from(
    ["model", "stream", "stream_options", "n", "max_tokens", "chat_template_kwargs", "cache_salt"]
)


@given(document=st.dictionaries(NAMES, JSON, max_size=5))
def test_any_value_of_a_known_field_is_taken_or_refused(document: dict[str, Any]) -> None:
    call = outcome(orjson.dumps({"model": "m"} | document))
    if isinstance(call, BadRequest):
        assert call.param is not None
    else:
        assert orjson.loads(call.upstream_body("real", "salt"))["model"] == "real"
