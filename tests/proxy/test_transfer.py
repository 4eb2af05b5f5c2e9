"""The two legs, byte for byte."""

from __future__ import annotations

import orjson
import pytest

from proxy.transfer import decode_body, may_split, params_of, prefill_body

CHAT = b"/v1/chat/completions"
ASKED = (
    b'{"model":"m","messages":[{"role":"user","content":"h\xc3\xa9, \\"kv_transfer_params\\""}],'
    b'"stream":true,"stream_options":{"include_usage":true},"max_tokens":300,"min_tokens":20,'
    b'"n":2,"temperature":0.5,"cache_salt":"s"}'
)
PREFILL = (
    b'{"model":"m","messages":[{"role":"user","content":"h\xc3\xa9, \\"kv_transfer_params\\""}],'
    b'"stream":false,"max_tokens":1,"temperature":0.5,"cache_salt":"s",'
    b'"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,'
    b'"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}}'
)
PARAMS = (
    b'{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[3,4,5],'
    b'"remote_engine_id":"e-1","remote_host":"10.0.0.7","remote_port":5600,"tp_size":1}'
)
ANSWER = b'{"id":"chatcmpl-1","choices":[],"kv_transfer_params":' + PARAMS + b"}"
DECODE = ASKED[:-1] + b',"kv_transfer_params":' + PARAMS + b"}"


def test_the_leg_that_prefills() -> None:
    assert prefill_body(ASKED) == PREFILL


def test_the_leg_that_goes_on_has_the_others_words() -> None:
    params = params_of(ANSWER)
    assert params is not None
    assert decode_body(ASKED, params) == DECODE


def test_both_bounds_are_one_token() -> None:
    document = orjson.loads(prefill_body(b'{"max_completion_tokens":9,"best_of":3}'))
    assert document["max_completion_tokens"] == document["max_tokens"] == 1
    assert "best_of" not in document
    assert "max_completion_tokens" not in orjson.loads(prefill_body(b"{}"))


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b"{}",
        b'{"kv_transfer_params":null}',
        b'{"kv_transfer_params":{}}',
        b'{"kv_transfer_params":{"do_remote_prefill":false}}',
    ],
)
def test_an_answer_that_hands_nothing_over(answer: bytes) -> None:
    assert params_of(answer) is None


def test_what_is_split() -> None:
    assert may_split(CHAT, ASKED, batch=False)
    assert not may_split(CHAT, ASKED, batch=True)
    assert not may_split(CHAT, DECODE, batch=False)
    assert not may_split(b"/v1/responses", ASKED, batch=False)
