"""Whether a replica takes the ids of a prompt's tokens instead of making them. Pure.

Versions prove nothing: vLLM's Rust frontend ignores the field that its Python one knows. So each
replica is asked. It must make the same ids of sample chats as we do, or ours would change its
answers; and of a chat that comes with the ids of another one it must answer the other one. What it
answered shows in `prompt_token_ids` (vLLM, asked for by `return_token_ids`) or in the number of
prompt tokens. An interview is a generator of questions that is sent the answers.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from core.prompt import Sample, Samples

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MAX_ANSWER_BYTES = 256 * 1024
TRANSFER, INPUT_IDS = "kv_transfer_params", "input_ids"
"""The fields of a chat that ids are taken from: vLLM's (0.28 and later), and SGLang's."""


class Question(NamedTuple):
    path: str
    body: bytes


class Accepted(NamedTuple):
    """What a replica takes: the field for a chat's ids, or None; whether a completion's prompt may
    be ids. `why`: in words, for the log."""

    chat: str | None
    completion: bool
    why: str


Interview = Generator[Question, bytes | None, Accepted]


def interview(model: str, samples: Samples) -> Interview:
    """The questions to a replica of `model`. To be sent the body of each good answer, None for a
    refusal."""
    chat, chats = None, "chats are not known by their tokens"
    if samples.chats:
        chat, chats = yield from _chat(model, samples.chats)
    completion, completions = yield from _completion(model, samples)
    return Accepted(chat, completion, f"{chats}; {completions}")


def with_ids(field: str, ids: bytes) -> bytes:
    """What follows the other fields of a chat with the JSON array `ids`."""
    return (
        b'"kv_transfer_params":{"prompt_token_ids":%b}' % ids
        if field == TRANSFER
        else (b'"input_ids":%b' % ids)
    )


def _chat(
    model: str, chats: Sequence[Sample]
) -> Generator[Question, bytes | None, tuple[str | None, str]]:
    for sample in chats:
        answer = yield _question(CHAT, model, sample.fields)
        if not was_asked(answer, sample.ids):
            return None, "it makes other prompts of chats than the gateway"
    one, other = chats[0], chats[1]
    for field in (TRANSFER, INPUT_IDS):
        more = msgspec.json.decode(b"{%b}" % with_ids(field, msgspec.json.encode(other.ids)))
        answer = yield _question(CHAT, model, {**one.fields, **more})
        if was_asked(answer, other.ids):
            return field, f"chats by `{field}`"
    return None, "it takes no ids for chats"


def _completion(
    model: str, samples: Samples
) -> Generator[Question, bytes | None, tuple[bool, str]]:
    text = samples.text
    answer = yield _question(COMPLETION, model, text.fields)
    if not was_asked(answer, text.ids):
        return False, "it makes other prompts of texts than the gateway"
    ids = [*text.ids, *text.ids]
    answer = yield _question(COMPLETION, model, {"prompt": ids})
    if not was_asked(answer, ids):
        return False, "it takes no ids for completions"
    return True, "completions"


def _question(path: str, model: str, fields: Mapping[str, Any]) -> Question:
    document = {"model": model, "max_tokens": 1, "return_token_ids": True, **fields}
    return Question(path, msgspec.json.encode(document))


def was_asked(answer: bytes | None, ids: Sequence[int]) -> bool:
    """Whether `answer` is one to the prompt `ids`, as far as it tells."""
    if answer is None:
        return False
    try:
        document = msgspec.json.decode(answer)
        choice = document["choices"][0]
        told = document.get("prompt_token_ids") or choice.get("prompt_token_ids")
        count = document["usage"]["prompt_tokens"]
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError):
        return False
    return bool(told == list(ids) if told is not None else count == len(ids))
