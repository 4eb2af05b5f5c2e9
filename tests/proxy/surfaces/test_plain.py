from __future__ import annotations

from typing import Any

import pytest

from core.errors import BadRequest
from proxy.call import REFUSED
from proxy.surfaces.plain import POOLED, TOKENS, as_chat, as_text, no_usage, pooled_usage


@pytest.mark.parametrize(
    ("document", "prompt"),
    [
        ({"input": "a"}, ["a"]),
        ({"input": ["a", "b"]}, ["a", "b"]),
        ({"input": [1, 2]}, [[1, 2]]),
        ({"input": [[1], [2]]}, [[1], [2]]),
        ({"query": "q", "documents": ["a", {"text": "b"}]}, ["q", "a", "b"]),
        ({"text_1": "a", "text_2": ["b", "c"]}, ["a", "b", "c"]),
        ({"input": [[1], "a"]}, ["a"]),
        ({"input": []}, [""]),
        ({"documents": {"content": [{"type": "text", "text": "a"}]}}, ["a"]),
    ],
)
def test_all_texts_are_one_batch(document: dict[str, Any], prompt: list[Any]) -> None:
    assert as_text(document) == {"prompt": prompt}


def test_messages_are_a_chat() -> None:
    document = {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"x": 1}}
    assert as_text({"model": "m", **document}) == document


def test_what_is_no_text_is_for_the_prompter_to_judge() -> None:
    image = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}
    for document in ({"input": image}, {"query": "a", "documents": {"content": [image]}}):
        assert as_text(document) == {"messages": [{"role": "user", "content": [image]}]}


def test_a_picture_is_none_the_less_one_for_having_a_text() -> None:
    image = {"type": "image_url", "text": "a", "image_url": {"url": "http://169.254.169.254/"}}
    assert as_text({"input": image})["messages"][0]["content"] == [image]


def test_of_what_is_only_counted_a_chat_is_looked_at() -> None:
    assert as_chat({"messages": [], "prompt": "a"}) == {"messages": []}
    assert as_chat({"prompt": "a"}) == {}


def test_how_tokens_are_made_is_kept() -> None:
    document = {"input": "a", "truncate_prompt_tokens": 5, "add_special_tokens": False}
    assert as_text(document) == {
        "prompt": ["a"],
        "truncate_prompt_tokens": 5,
        "add_special_tokens": False,
    }


def test_nothing_is_generated() -> None:
    assert pooled_usage({"prompt_tokens": 5, "total_tokens": 5}) == {
        "prompt_tokens": 5,
        "completion_tokens": 0,
    }
    assert pooled_usage({"total_tokens": 5}) == {"prompt_tokens": 5, "completion_tokens": 0}
    assert pooled_usage(None) is None
    assert no_usage(None) == {"prompt_tokens": 0, "completion_tokens": 0}


@pytest.mark.parametrize("surface", [*POOLED, *TOKENS], ids=lambda surface: surface.path)
def test_a_body_goes_on_with_its_model_alone_changed(surface: Any) -> None:
    call = surface.parse(b'{"model":"alias","input":"a"}', REFUSED)
    assert call.max_output_tokens == 0
    assert call.upstream_body("m", "") == b'{"model":"m","input":"a"}'
    with pytest.raises(BadRequest, match="one piece"):
        surface.parse(b'{"model":"m","stream":true}', REFUSED)
