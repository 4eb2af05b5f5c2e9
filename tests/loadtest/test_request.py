from __future__ import annotations

import pytest

from loadtest.replica.engine import Engine, Job
from loadtest.replica.options import ReplicaOptions
from loadtest.replica.request import Refused, chosen_rank, parse_body, parse_generation
from loadtest.replica.tokens import Speech

OPTIONS = ReplicaOptions(max_model_len=64, output_tokens=7)
SPEECH = Speech(OPTIONS.tokenizer, OPTIONS.chat_template)
MESSAGES = [{"role": "user", "content": "Hi"}]


def chat(behaviour=None, **fields):
    body = {"messages": MESSAGES, **fields}
    return parse_generation(body, True, OPTIONS, SPEECH, behaviour or {})


def test_the_length_of_the_answer():
    assert (chat().output_tokens, chat().finish_reason) == (7, "stop")
    asked = chat(max_tokens=3)
    assert (asked.output_tokens, asked.finish_reason) == (3, "length")
    assert chat(max_tokens=3, max_completion_tokens=2).output_tokens == 2
    assert chat(max_tokens=64).output_tokens == 64 - len(chat().prompt_ids)
    assert chat({"tokens": 9}, max_tokens=3).output_tokens == 9


def test_usage_is_for_streams():
    asked = chat(stream=True, stream_options={"include_usage": True})
    assert asked.include_usage
    assert not asked.continuous_usage
    with pytest.raises(Refused) as caught:
        chat(stream_options={"include_usage": True})
    assert caught.value.body["error"]["param"] == "stream_options"


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"model": "nope"}, 404, "The model `nope` does not exist. Valid aliases: demo."),
        ({"messages": []}, 400, "Field required"),
        ({"max_tokens": 65}, 400, "max_tokens=65 cannot be greater than max_model_len=64"),
        ({"max_tokens": 0}, 400, "must be at least 1"),
        ({"messages": [{"role": "user", "content": "a b " * 64}]}, 400, "at least"),
    ],
)
def test_what_vllm_refuses_is_refused(fields, status, words):
    with pytest.raises(Refused) as caught:
        chat(**fields)
    assert caught.value.status == status
    assert words in caught.value.body["error"]["message"]


def test_token_ids_are_reused_unless_the_frontend_cannot():
    transfer = {"prompt_token_ids": [5, 6, 7]}
    assert chat(kv_transfer_params=transfer).prompt_ids == [5, 6, 7]
    ignored = chat({"ignore_token_ids": 0}, kv_transfer_params=transfer).prompt_ids
    assert ignored == SPEECH.chat_ids({"messages": MESSAGES})


def test_completion_prompts():
    def completion(prompt):
        return parse_generation({"prompt": prompt}, False, OPTIONS, SPEECH, {}).prompt_ids

    assert completion("the river") == SPEECH.encode("the river")
    assert completion([1, 2, 3]) == [1, 2, 3]
    assert completion([[1, 2], [3]]) == [1, 2]
    with pytest.raises(Refused, match=r"contains 64 input tokens"):
        completion([1] * 64)


@pytest.mark.parametrize("body", [b"{", b"", b"[1]", b'"x"', b"\xff"])
def test_a_body_must_be_an_object(body):
    with pytest.raises(Refused) as caught:
        parse_body(body)
    assert caught.value.status == 400


def test_a_rank_is_named_or_chosen():
    engines = [Engine(ReplicaOptions()) for _ in range(3)]
    engines[0].submit(Job([1], [2]), now=0.0)
    assert chosen_rank(engines, "2") == 2
    assert chosen_rank(engines, None) == chosen_rank(engines, "x") == 1
    with pytest.raises(Refused) as refused:
        chosen_rank(engines, "3")
    assert refused.value.status == 400
    assert "data_parallel_rank 3 is out of range [0, 3)." in str(refused.value.body)
