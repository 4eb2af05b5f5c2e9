from __future__ import annotations

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from loadtest.replica.options import DEMO_MODEL
from loadtest.replica.tokens import Speech

PATH = DEMO_MODEL / "tokenizer.json"
SPEECH = Speech(PATH, DEMO_MODEL / "chat_template.jinja")
REFERENCE = tokenizers.Tokenizer.from_file(str(PATH))


def test_the_demonstration_tokenizer_is_small_and_complete():
    assert PATH.stat().st_size < 300_000
    assert REFERENCE.get_vocab_size() == 4096
    for special in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"):
        assert REFERENCE.token_to_id(special) is not None


@given(st.text(max_size=60))
def test_ids_are_those_of_the_reference(text):
    assert SPEECH.encode(text) == REFERENCE.encode(text, add_special_tokens=False).ids


def test_a_chat_is_rendered_before_it_is_encoded():
    body = {"messages": [{"role": "user", "content": "Explain the river."}]}
    text = "<|im_start|>user\nExplain the river.<|im_end|>\n<|im_start|>assistant\n"
    assert REFERENCE.decode(SPEECH.chat_ids(body), skip_special_tokens=False) == text
    parts = [{"type": "text", "text": "Explain "}, {"type": "text", "text": "the river."}]
    body = {"messages": [{"role": "user", "content": parts}]}
    assert REFERENCE.decode(SPEECH.chat_ids(body), skip_special_tokens=False) == text


def test_tool_calls_are_rendered_with_their_arguments_as_objects():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    body = {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
    text = REFERENCE.decode(SPEECH.chat_ids(body), skip_special_tokens=False)
    assert 'call f {"a": 1}<|im_end|>' in text


def test_messages_that_are_none_are_refused():
    with pytest.raises(ValueError, match=r"."):
        SPEECH.chat_ids({"messages": [1]})


@given(st.lists(st.integers(0, 4095), min_size=1, max_size=40), st.integers(1, 50))
def test_answers_depend_on_the_prompt_alone_and_encode_to_their_ids(prompt, count):
    ids = SPEECH.answer_ids(prompt, count)
    text = "".join(map(SPEECH.text, ids))
    assert len(ids) == count
    assert ids == SPEECH.answer_ids(list(prompt), count + 5)[:count]
    assert SPEECH.encode(text) == ids
    assert json.loads(f'"{text}"') == text


def test_other_prompts_get_other_answers():
    answers = {tuple(SPEECH.answer_ids([n], 8)) for n in range(100)}
    assert len(answers) > 95
