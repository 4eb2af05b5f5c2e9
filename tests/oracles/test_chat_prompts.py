"""Prompts of real chat templates beside Jinja2's and those that an engine reported."""

from __future__ import annotations

import array
import json
import re
from typing import Any

import pytest
from beside import beside

from core.errors import BadRequest
from core.section import FilePath
from routing.config import ModelConfig
from routing.messages import dump_tools, normalise
from routing.samples import chats
from routing.served_model import ServedModel
from routing.template import ChatTemplate

TOKENIZER = "tokenizers/qwen3.tokenizer.json"
TEMPLATE = "tokenizers/qwen3.tokenizer_config.json"


def qwen_template(**config: Any) -> ChatTemplate:
    source = json.loads(beside(TEMPLATE).read_text())["chat_template"]
    return ChatTemplate(source, {"bos_token": "<s>"}, ModelConfig(name="m", **config))


def test_both_engines_render_qwen_alike() -> None:
    fast = qwen_template()
    slow = qwen_template(template_engine="jinja2")
    assert fast.engine == "minijinja"
    assert not fast.as_parts
    rendered = set()
    for messages, tools in chats(as_parts=False):
        for options in ({}, {"chat_template_kwargs": {"enable_thinking": False}}):
            texts = []
            for engine, patient in ((fast, False), (slow, False), (slow, True)):
                try:
                    texts.append(engine.render(messages, tools, options, patient=patient))
                except BadRequest:
                    texts.append("refused")
            assert texts[0] == texts[1] == texts[2]
            rendered.add(texts[0])
    assert len(rendered) > 100


def test_a_recorded_engine_prompt_is_reproduced() -> None:
    """The text of the prompt that vLLM reported token by token for this request."""
    request = json.loads(beside("vllm/fixtures/req/chat_tools.json").read_text())
    messages = normalise(request["messages"], as_parts=False, developer=False).messages
    text = qwen_template().render(messages, dump_tools(request["tools"]), request)
    tool = (
        '{"type": "function", "function": {"name": "get_weather", "description": "d", '
        '"parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}'
    )
    assert f"<tools>\n{tool}\n</tools>" in text
    assert text.endswith(
        "<|im_start|>user\nHello, tell me about paging.<|im_end|>\n<|im_start|>assistant\n"
    )


def recorded(text: str) -> list[int]:
    found = re.search(r'"(?:prompt_token_ids|token_ids|tokens)":(\[[\d,]+\])', text)
    assert found is not None
    ids: list[int] = json.loads(found.group(1))
    return ids


def test_the_ids_are_those_a_real_engine_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig(
        name="m",
        tokenizer=FilePath(beside(TOKENIZER)),
        chat_template=FilePath(beside(TEMPLATE)),
        template_engine="minijinja",
    )
    model = ServedModel(config, 16)
    encoded: list[bytes] = []

    def spy(data: bytes, block_tokens: int, start: int) -> list[int]:
        encoded.append(data)
        return []

    monkeypatch.setattr("routing.served_model.chain", spy)
    for name in (
        "json_tokenize_chat",
        "json_tokenize_chat_nogen",
        "json_render_chat",
        "sse_chat_token_ids",
        "sse_chat_tools",
    ):
        answer = beside(f"vllm/fixtures/{name}.bin").read_text()
        request = json.loads(beside(f"vllm/fixtures/{name}.json").read_text())["request"]
        doc = json.loads(request.partition("\r\n\r\n")[2])
        ids = recorded(answer)
        encoded.clear()
        assert model.chat(doc, 1, patient=False).length == len(ids)
        assert array.array("I", encoded[0]).tolist() == ids, name
