from __future__ import annotations

import array
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from backend.token_ids import INPUT_IDS, TRANSFER, Accepted, with_ids
from core.metrics import Metrics
from core.prompt import Prompt
from proxy.token_ids import CHAT, COMPLETION, HandOver, ids_of

IDS = array.array("I", [1, 70_000, 3]).tobytes()
PROMPT = Prompt("m", 3, 3, True, (), 64, IDS)
MESSAGES: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"model": "m", "prompt": "a text"}


def handed(accepted: Accepted | None, path: str, document: dict[str, Any]) -> dict[str, Any]:
    """What a replica gets that takes so much."""
    hand_over = HandOver(lambda replica_id: accepted, with_ids, Metrics.private())
    sent: Any = SimpleNamespace(
        path=path.encode(), body=orjson.dumps(document), ids=ids_of(path, document, PROMPT)
    )
    found: dict[str, Any] = orjson.loads(hand_over.body("r", sent))
    return found


def test_a_chat_goes_along_with_its_ids() -> None:
    ids = [1, 70_000, 3]
    by_transfer = handed(Accepted(TRANSFER, True, ""), CHAT, MESSAGES)
    assert by_transfer == {**MESSAGES, TRANSFER: {"prompt_token_ids": ids}}
    assert handed(Accepted(INPUT_IDS, True, ""), CHAT, MESSAGES) == {**MESSAGES, INPUT_IDS: ids}


def test_the_ids_of_a_completion_are_in_the_place_of_its_text() -> None:
    assert handed(Accepted(None, True, ""), COMPLETION, TEXT) == {**TEXT, "prompt": [1, 70_000, 3]}


@pytest.mark.parametrize(
    ("accepted", "path", "document"),
    [
        (None, CHAT, MESSAGES),
        (None, COMPLETION, TEXT),
        (Accepted(None, True, ""), CHAT, MESSAGES),
        (Accepted(TRANSFER, False, ""), COMPLETION, TEXT),
    ],
)
def test_who_does_not_take_ids_gets_the_text(
    accepted: Accepted | None, path: str, document: dict[str, Any]
) -> None:
    assert handed(accepted, path, document) == document


@pytest.mark.parametrize(
    "more",
    [
        {"truncate_prompt_tokens": 5},
        {"echo": False},
        {"kv_transfer_params": {"do_remote_decode": True}},
        {"input_ids": [1]},
        {"prompt_embeds": "..."},
        {"reasoning_effort": "none"},
        {"tools": [{"type": "function"}], "tool_choice": "none"},
    ],
)
def test_what_is_not_exact_is_not_handed_over(more: dict[str, Any]) -> None:
    assert ids_of(CHAT, {**MESSAGES, **more}, PROMPT) is None
    if "tools" not in more:
        assert ids_of(COMPLETION, {**TEXT, **more}, PROMPT) is None


def test_what_is_exact_is() -> None:
    tools = {"tools": [{"type": "function"}], "tool_choice": "auto"}
    thinking = {"chat_template_kwargs": {"enable_thinking": False}}
    for more in ({}, tools, thinking, {"stream": True, "continue_final_message": True}):
        assert ids_of(CHAT, {**MESSAGES, **more}, PROMPT) == IDS
    assert ids_of(COMPLETION, TEXT, PROMPT) == IDS


def test_only_a_single_text_is_a_completions_prompt() -> None:
    for prompt in (["a", "b"], ["a"], [1, 2], [[1]]):
        assert ids_of(COMPLETION, {**TEXT, "prompt": prompt}, PROMPT) is None


def test_other_apis_and_estimates_are_as_they_were() -> None:
    assert ids_of("/v1/messages", MESSAGES, PROMPT) is None
    assert ids_of("/v1/responses", {"input": "hi"}, PROMPT) is None
    assert ids_of(CHAT, MESSAGES, PROMPT._replace(ids=None)) is None


def test_what_is_handed_over_is_counted() -> None:
    metrics = Metrics.private()
    hand_over = HandOver(lambda replica_id: Accepted(TRANSFER, True, ""), with_ids, metrics)
    for path, ids in ((CHAT, IDS), (CHAT, None), (COMPLETION, IDS)):
        sent: Any = SimpleNamespace(path=path.encode(), body=b'{"model":"m"}', ids=ids)
        hand_over.body("r", sent)
    name = "headrace_prompts_handed_over_total"
    assert (metrics.value(name, CHAT), metrics.value(name, COMPLETION)) == (1, 1)
