"""The APIs that the fake replica speaks: how a body is read, and how the answer is worded. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from loadtest.replica import dialect, messages, plain, responses
from loadtest.replica.options import ReplicaOptions
from loadtest.replica.request import Generation, Refused
from loadtest.replica.tokens import Speech
from loadtest.replica.transfer import handed_over

Body = dict[str, Any]


class Wording(Protocol):
    """How one answer reads. `plain`: all token events are `halves` around the text."""

    @property
    def response_id(self) -> str: ...
    @property
    def plain(self) -> bool: ...
    def opening(self) -> list[bytes]: ...
    def halves(self) -> tuple[bytes, bytes]: ...
    def token_event(
        self, text: str, token: int, sent: int, finish_reason: str | None, sent_at_ns: int
    ) -> bytes: ...
    def closing(
        self,
        text: Callable[[], str],
        sent: int,
        cached: int,
        reason: str,
        *,
        usage: bool,
        end: bool,
    ) -> list[bytes]: ...
    def failure(self, code: int) -> list[bytes]: ...
    def error_body(self, code: int) -> Body: ...
    def document(
        self, text: str, output_ids: Sequence[int], cached: int, finish_reason: str
    ) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """Of what a wording is made. `number` and `created` are drawn by the server."""

    body: Body
    generation: Generation
    options: ReplicaOptions
    speech: Speech
    number: str
    created: int
    stamp: bool


def same(body: Body) -> Body:
    return body


@dataclass(frozen=True, slots=True)
class Api:
    """`generation`: the completion request that stands for a body, which is a `chat` or not;
    `refusal`: an error body in the shape of the API."""

    path: str
    wording: Callable[[Asked], Wording]
    chat: bool = True
    generation: Callable[[Body], Body] = same
    refusal: Callable[[Body], Body] = same

    def translated(self, body: Body) -> Body:
        """Raises Refused."""
        try:
            return self.generation(body)
        except (KeyError, TypeError, AttributeError) as error:
            problem = dialect.invalid_field("body", "missing", "Field required")
            raise Refused(400, self.refusal(problem)) from error


def _completion(chat: bool) -> Callable[[Asked], Wording]:
    def wording(asked: Asked) -> Wording:
        wanted = asked.generation
        return dialect.Wording(
            chat,
            f"{'chatcmpl' if chat else 'cmpl'}-{asked.number}",
            asked.created,
            asked.options.model,
            wanted.prompt_ids,
            wanted.include_usage,
            wanted.continuous_usage,
            wanted.return_token_ids,
            asked.stamp,
            handed_over(wanted.prompt_ids, asked.options) if wanted.hands_over else None,
        )

    return wording


def _message(asked: Asked) -> Wording:
    number = f"chatcmpl-{asked.number}"
    return messages.MessageWording(number, asked.options.model, asked.generation.prompt_ids)


def _response(asked: Asked) -> Wording:
    prompt, model = asked.generation.prompt_ids, asked.options.model
    number = str(asked.body.get("request_id") or f"resp_{asked.number}")
    return responses.ResponseWording(number, asked.created, model, prompt)


def _one_token(texts: Callable[[Body], list[Any]]) -> Callable[[Body], Body]:
    def generation(body: Body) -> Body:
        found = texts(body)
        joined = found[0] if len(found) == 1 else " ".join(str(text) for text in found)
        return {"model": body.get("model"), "prompt": joined or [0], "max_tokens": 1}

    return generation


def _pooling(path: str) -> Api:
    def wording(asked: Asked) -> Wording:
        texts, tokens = len(plain.texts_of(asked.body)), len(asked.generation.prompt_ids)
        answer = plain.pooled(path, asked.options.model, texts, tokens, asked.created)
        return plain.PlainWording(f"embd-{asked.number}", answer, same)

    return Api(path, wording, chat=False, generation=_one_token(plain.texts_of))


def _token_ids(body: Body, speech: Speech) -> list[int]:
    if "messages" in body:
        return speech.chat_ids(body)
    special = body.get("add_special_tokens", True)
    return speech.encode(str(body.get("prompt", "")), add_special_tokens=special)


def _tokenize(asked: Asked) -> Wording:
    try:
        ids = _token_ids(asked.body, asked.speech)
    except (ValueError, KeyError) as error:
        raise Refused(400, dialect.error(400, str(error))) from error
    limit = asked.options.max_model_len
    found = {"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": None}
    return plain.PlainWording(f"tok-{asked.number}", found, same)


def _detokenize(asked: Asked) -> Wording:
    text = asked.speech.decode(asked.body.get("tokens") or [])
    return plain.PlainWording(f"detok-{asked.number}", {"prompt": text}, same)


def _count(asked: Asked) -> Wording:
    count = len(asked.speech.chat_ids(messages.as_chat(asked.body)))
    answer = {"input_tokens": count, "context_management": {"original_input_tokens": count}}
    return plain.PlainWording(f"count-{asked.number}", answer, messages.refusal)


_NOTHING = _one_token(lambda body: [])


def _counted(body: Body) -> Body:
    messages.as_chat(body)  # fails where a generation would
    return _NOTHING(body)


APIS = (
    Api("/v1/chat/completions", _completion(chat=True)),
    Api("/v1/completions", _completion(chat=False), chat=False),
    Api(
        "/v1/messages",
        _message,
        generation=messages.as_chat,
        refusal=messages.refusal,
    ),
    Api(
        "/v1/messages/count_tokens",
        _count,
        chat=False,
        generation=_counted,
        refusal=messages.refusal,
    ),
    Api("/v1/responses", _response, generation=responses.as_chat),
    Api(
        "/v1/audio/transcriptions",
        lambda asked: plain.PlainWording(f"audio-{asked.number}", {"text": "a headrace"}, same),
        chat=False,
        generation=lambda body: {"prompt": [0], "max_tokens": 1},  # whatever the body is
    ),
    Api("/tokenize", _tokenize, chat=False, generation=_NOTHING),
    Api("/detokenize", _detokenize, chat=False, generation=_NOTHING),
    *map(
        _pooling,
        (
            "/v1/embeddings",
            "/v1/rerank",
            "/rerank",
            "/v2/rerank",
            "/v1/score",
            "/score",
            "/classify",
            "/pooling",
        ),
    ),
)
