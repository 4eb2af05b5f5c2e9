from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from backend.token_ids import (
    COMPLETION,
    INPUT_IDS,
    TRANSFER,
    Accepted,
    Question,
    interview,
    was_asked,
    with_ids,
)
from core.prompt import Sample, Samples

HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
BYE: dict[str, Any] = {"messages": [{"role": "user", "content": "good bye"}]}
TEXT: dict[str, Any] = {"prompt": "a text"}
RENDERED = {"hi": [1, 2], "good bye": [3, 4, 5], "a text": [6, 7]}
SAMPLES = Samples([Sample(HI, [1, 2]), Sample(BYE, [3, 4, 5])], Sample(TEXT, [6, 7]))

Engine = Callable[[Question], dict[str, Any] | None]


def ids_in(document: dict[str, Any], *fields: str) -> list[int]:
    if "messages" not in document:
        prompt = document["prompt"]
        return RENDERED[prompt] if isinstance(prompt, str) else prompt
    if TRANSFER in fields and (params := document.get(TRANSFER)):
        found: list[int] = params["prompt_token_ids"]
        return found
    if INPUT_IDS in fields and (given := document.get(INPUT_IDS)):
        return list(given)
    return RENDERED[document["messages"][0]["content"]]


def engine(*fields: str, told: bool = True, off: int = 0) -> Engine:
    """One that takes ids from `fields`. `told`: it names the ids that it used; `off`: its prompts
    are so many tokens longer than ours."""

    def answer(question: Question) -> dict[str, Any]:
        document = json.loads(question.body)
        assert document["max_tokens"] == 1
        ids = [0] * off + ids_in(document, *fields)
        made = {"usage": {"prompt_tokens": len(ids)}, "choices": [{}]}
        if told and question.path == COMPLETION:
            made["choices"] = [{"prompt_token_ids": ids}]
        elif told:
            made["prompt_token_ids"] = ids
        return made

    return answer


def ask(answering: Engine, samples: Samples = SAMPLES) -> Accepted:
    steps = interview("m", samples)
    question = next(steps)
    while True:
        assert json.loads(question.body)["model"] == "m"
        found = answering(question)
        try:
            question = steps.send(None if found is None else json.dumps(found).encode())
        except StopIteration as end:
            accepted: Accepted = end.value
            return accepted


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("field", [TRANSFER, INPUT_IDS])
def test_the_field_that_is_honoured_is_found(field: str, told: bool) -> None:
    assert ask(engine(field, told=told))[:2] == (field, True)


def test_who_ignores_ids_gets_none_for_chats() -> None:
    accepted = ask(engine())
    assert accepted[:2] == (None, True)
    assert "takes no ids for chats" in accepted.why


def test_who_makes_other_prompts_gets_texts() -> None:
    accepted = ask(engine(TRANSFER, INPUT_IDS, off=1))
    assert accepted[:2] == (None, False)
    assert accepted.why.count("other prompts") == 2


def test_a_model_without_a_template_is_asked_for_completions_alone() -> None:
    def no_chats(question: Question) -> dict[str, Any] | None:
        assert question.path == COMPLETION
        return engine()(question)

    assert ask(no_chats, Samples([], SAMPLES.text))[:2] == (None, True)


def test_who_refuses_gets_texts() -> None:
    assert ask(lambda question: None)[:2] == (None, False)

    def no_lists(question: Question) -> dict[str, Any] | None:
        asked = json.loads(question.body)
        return None if isinstance(asked.get("prompt"), list) else engine(TRANSFER)(question)

    assert ask(no_lists)[:2] == (TRANSFER, False)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"",
        b"[]",
        b"{}",
        b'{"choices":[],"usage":{"prompt_tokens":2}}',
        b'{"choices":[{}],"usage":null}',
        b'{"choices":[{}],"usage":{"prompt_tokens":3}}',
        b'{"choices":[{}],"prompt_token_ids":[2,1],"usage":{"prompt_tokens":2}}',
    ],
)
def test_what_proves_nothing(answer: bytes | None) -> None:
    assert not was_asked(answer, [1, 2])


def test_the_field_is_a_member_of_an_object() -> None:
    for field in (TRANSFER, INPUT_IDS):
        document = json.loads(b"{%b}" % with_ids(field, b"[1,2]"))
        assert document in ({TRANSFER: {"prompt_token_ids": [1, 2]}}, {INPUT_IDS: [1, 2]})
        assert field in document
