"""The section `requests`: what may be in the body of a completion request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from msgspec import Meta

from core.describe import did_you_mean
from core.section import Contradictions, Section
from proxy.call import NEVER_FORWARDED, NOT_FORWARDED

Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Names = tuple[str, ...]
Route = Literal[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/rerank",
    "/rerank",
    "/v2/rerank",
    "/v1/score",
    "/score",
    "/classify",
    "/pooling",
    "/tokenize",
    "/detokenize",
]
"""The paths that a model answers."""


class RequestRule(Section):
    """For requests to one of `models` at one of `routes` (none: all). What it leaves out is as in
    general."""

    models: Names = ()
    routes: tuple[Route, ...] = ()
    deny_fields: Names | None = None
    allow_fields: Names | None = None
    max_choices: Count | None = None
    max_output_tokens: Count | None = None

    def __post_init__(self) -> None:
        faults = list(_field_faults(self.deny_fields or (), self.allow_fields or ()))
        settings = (self.deny_fields, self.allow_fields, self.max_choices, self.max_output_tokens)
        if all(setting is None for setting in settings):
            names = "`deny_fields`, `allow_fields`, `max_choices` or `max_output_tokens`"
            faults.append(("", f"expected {names}: what is to hold there"))
        if faults:
            raise Contradictions(faults)


class RequestsConfig(Section):
    """What holds in general, and `rules`, of which the first that fits a request holds instead.

    `deny_fields` are refused; `allow_fields` are let through of those that are refused otherwise.
    `max_choices` bounds the answers of one request (prompts times the greater of `n` and
    `best_of`), `max_output_tokens` the tokens of all of them together. None: no bound.
    """

    deny_fields: Names = ()
    allow_fields: Names = ()
    max_choices: Count | None = None
    max_output_tokens: Count | None = None
    rules: tuple[RequestRule, ...] = ()

    def __post_init__(self) -> None:
        faults = list(_field_faults(self.deny_fields, self.allow_fields))
        for number, rule in enumerate(self.rules):
            if rule.deny_fields is None:
                both = sorted({*self.deny_fields}.intersection(rule.allow_fields or ()))
                sentence = "is denied in general; give this rule its own `deny_fields`"
                faults += [(f".rules[{number}].allow_fields", f"`{x}` {sentence}") for x in both]
        if faults:
            raise Contradictions(faults)


def _field_faults(denied: Iterable[str], allowed: Iterable[str]) -> Iterator[tuple[str, str]]:
    for index, name in enumerate(denied):
        if name in ("", "model"):
            yield f".deny_fields[{index}]", "expected the name of a field other than `model`"
    for index, name in enumerate(allowed):
        place = f".allow_fields[{index}]"
        if name in NEVER_FORWARDED:
            yield place, f"`{name}` can never be allowed: {NEVER_FORWARDED[name]}"
        elif name not in NOT_FORWARDED:
            hint = did_you_mean(name, NOT_FORWARDED) or f"; these are: {', '.join(NOT_FORWARDED)}"
            yield place, f"`{name}` is not one of those that are refused otherwise{hint}"
        elif name in denied:
            yield place, f"`{name}` is in `deny_fields` too; remove it from one of them"
