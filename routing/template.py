"""Chat templates: rendered by jinja2 as engines do, by minijinja where that is proven equal.

Performs: reads the template's file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import jinja2.defaults
import jinja2.meta
import msgspec

from core.errors import BadRequest, ConfigError
from routing.config import ModelConfig
from routing.content_format import iterates_content
from routing.engines import (
    Render,
    TemplateFailure,
    TemplateRefusal,
    compile_jinja2,
    compile_minijinja,
)
from routing.messages import Message
from routing.samples import chats

_log = logging.getLogger("headrace.routing")

_GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_GLOBALS = frozenset({"raise_exception", "strftime_now"}) | frozenset(
    jinja2.defaults.DEFAULT_NAMESPACE
)
OPTIONS = frozenset(
    {
        "add_generation_prompt",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "reasoning_effort",
    }
)
"""The fields of a request that `ChatTemplate.render` reads."""
_REFUSED_VARIABLES = ("chat_template", "tokenize")
_MOST_SWITCHES = 4
_SPECIAL_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
# Transformers' own sentinel for `continue_final_message`.
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class ChatTemplate:
    """One compiled chat template.

    `as_parts`: it wants contents as lists of parts. `knows_developer`: it has that role.
    `tokens` are the special tokens it may write (`bos_token`...). Raises ConfigError when it is
    not valid.
    """

    def __init__(self, source: str, tokens: Mapping[str, str], config: ModelConfig) -> None:
        place = str(config.chat_template)
        try:
            self._jinja2, tree = compile_jinja2(source)
            self._patient, _ = compile_jinja2(source, patient=True)
        except TemplateFailure as error:
            raise ConfigError(
                f"the chat template {place} is not valid ({error}); "
                "take the one that came with the model"
            ) from error
        if config.content_format == "auto":
            self.as_parts = iterates_content(tree)
        else:
            self.as_parts = config.content_format == "openai"
        self.knows_developer = "'developer'" in source or '"developer"' in source
        self._place = place
        self._tokens = dict(tokens)
        allowed = jinja2.meta.find_undeclared_variables(tree) - _GIVEN - _GLOBALS
        allowed -= self._tokens.keys()
        if config.chat_template_kwargs is not None:
            allowed &= set(config.chat_template_kwargs)
        self._allowed = frozenset(allowed)
        self._compared = frozenset(sorted(allowed)[:_MOST_SWITCHES])
        self._fast = self._choose(source, config)
        self._plain: dict[str, Any] = {
            **self._tokens,
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
        }

    def __repr__(self) -> str:
        return f"<ChatTemplate {self._place} by {self.engine}>"

    @property
    def engine(self) -> str:
        return "jinja2" if self._fast is None else "minijinja"

    def render(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None,
        doc: Mapping[str, Any],
        *,
        patient: bool = False,
    ) -> str:
        """The prompt's text. `doc` is the request, read for its rendering options; `patient`
        keeps the interpreter's lock free for the event loop.

        Raises BadRequest, with the template's words when it refuses the chat.
        """
        continued = doc.get("continue_final_message") is True
        variables = dict(self._tokens)
        compared = self._take_options(doc, variables)
        variables["messages"] = _tagged(messages) if continued else messages  # type: ignore[assignment]
        variables["tools"] = tools  # type: ignore[assignment]
        fast = self._fast if compared and not patient else None
        # jinja2 has the last word when minijinja fails.
        text = None if fast is None else _outcome(fast, variables)
        if text is None:
            text = self._by_jinja2(variables, patient)
        return _cut_at_tag(text) if continued else text

    def render_plain(self, messages: list[Message]) -> str:
        """As `render`, without tools and of a request that holds none of `OPTIONS`."""
        variables = {**self._plain, "messages": messages}
        if self._fast is not None:
            try:
                return self._fast(variables)
            except (TemplateFailure, TemplateRefusal):
                pass  # jinja2 has the last word
        return self._by_jinja2(variables, False)

    def _by_jinja2(self, variables: Mapping[str, Any], patient: bool) -> str:
        try:
            return (self._patient if patient else self._jinja2)(variables)
        except TemplateRefusal as error:
            raise BadRequest(str(error), param="messages") from error
        except TemplateFailure as error:
            raise BadRequest(
                f"the chat template cannot render these messages: {error}", param="messages"
            ) from error

    def _take_options(self, doc: Mapping[str, Any], variables: dict[str, Any]) -> bool:
        """Put the request's rendering options into `variables`. Returns whether all of them are
        of the kind that was compared between the engines."""
        documents = variables["documents"] = doc.get("documents")
        generate = variables["add_generation_prompt"] = doc.get("add_generation_prompt", True)
        compared = documents is None and (generate is True or generate is False)
        effort = doc.get("reasoning_effort")
        if effort is not None:
            compared = False
            if "reasoning_effort" in self._allowed:
                variables["reasoning_effort"] = effort
            if "enable_thinking" in self._allowed:
                variables["enable_thinking"] = effort != "none"  # unless `given` says otherwise
        given = doc.get("chat_template_kwargs")
        if given is None:
            return compared
        if not isinstance(given, dict):
            raise BadRequest(
                "`chat_template_kwargs` must be an object", param="chat_template_kwargs"
            )
        for name, value in given.items():
            if name in _REFUSED_VARIABLES:
                raise BadRequest(
                    f"`chat_template_kwargs` must not hold `{name}`", param="chat_template_kwargs"
                )
            if name in self._allowed:
                variables[name] = value
                compared = compared and isinstance(value, bool) and name in self._compared
        return compared

    def _choose(self, source: str, config: ModelConfig) -> Render | None:
        """minijinja when it renders every sample as jinja2 does, else None."""
        if config.template_engine == "jinja2":
            return None
        try:
            fast = compile_minijinja(source)
        except TemplateFailure as error:
            difference: str | None = f"minijinja refuses it: {error}"
        else:
            difference = self._difference(fast)
            if difference is None:
                return fast
        if config.template_engine == "minijinja":
            raise ConfigError(
                f"minijinja does not render the chat template {self._place} as jinja2 does "
                f"({difference}); set `template_engine: auto`"
            )
        _log.info("chat template %s is rendered by jinja2: %s", self._place, difference)
        return None

    def _difference(self, fast: Render) -> str | None:
        """The first sample that the engines render differently, in words."""
        now = datetime.now()
        base = {**self._tokens, "documents": None, "strftime_now": now.strftime}
        for options in _settings(self._compared):
            for number, (messages, tools) in enumerate(chats(as_parts=self.as_parts)):
                variables = {**base, **options, "messages": messages, "tools": tools}
                got = _outcome(fast, variables)
                # A failure of minijinja alone is harmless: jinja2 is asked then.
                if got is not None and got != _outcome(self._jinja2, variables):
                    return f"sample {number} with {options} differs"
        return None


def load_template(config: ModelConfig) -> ChatTemplate | None:
    """The model's chat template, None when it has none. Raises ConfigError."""
    path = config.chat_template
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            source = file.read()
    except OSError as error:
        raise ConfigError(
            f"cannot read the chat template {path}: {error.strerror}; correct `chat_template`"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the chat template {path} is not UTF-8 text; save it as such") from error
    tokens: dict[str, str] = {}
    if path.endswith(".json"):
        source, tokens = _from_tokenizer_config(source, path)
    if config.bos_token is not None:
        tokens["bos_token"] = config.bos_token
    if config.eos_token is not None:
        tokens["eos_token"] = config.eos_token
    return ChatTemplate(source, tokens, config)


def _from_tokenizer_config(text: str, path: str) -> tuple[str, dict[str, str]]:
    """The template and the special tokens of a `tokenizer_config.json`."""
    try:
        doc = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is not valid JSON ({error}); fetch it again") from error
    template = doc.get("chat_template") if isinstance(doc, dict) else None
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    if not isinstance(template, str):
        raise ConfigError(
            f"{path} holds no `chat_template`; give the Jinja file that came with the model"
        )
    tokens: dict[str, str] = {}
    for kind in _SPECIAL_TOKENS:
        token = doc.get(f"{kind}_token")
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            tokens[f"{kind}_token"] = token
    return template, tokens


def _settings(switches: frozenset[str]) -> Iterator[dict[str, bool]]:
    """The options to compare: each switch alone on and off, with and without generation."""
    for generate in (True, False):
        yield {"add_generation_prompt": generate}
        for switch in sorted(switches):
            for value in (True, False):
                yield {"add_generation_prompt": generate, switch: value}


def _outcome(render: Render, variables: Mapping[str, Any]) -> str | None:
    try:
        return render(variables)
    except (TemplateFailure, TemplateRefusal):
        return None


def _tagged(messages: list[Message]) -> list[Message]:
    """The messages with a mark where the last one's text ends."""
    last = dict(messages[-1])
    content = last["content"]
    if isinstance(content, str):
        last["content"] = content + _TAG
    else:
        parts = [dict(part) for part in content]
        for part in reversed(parts):
            if "text" in part:
                part["text"] += _TAG
                break
        last["content"] = parts
    return [*messages[:-1], last]


def _cut_at_tag(text: str) -> str:
    """The text up to the mark: the last message stays open."""
    at = text.rfind(_TAG.rstrip())
    if at < 0:
        raise BadRequest(
            "continue_final_message is set but the final message does not appear in the prompt",
            param="continue_final_message",
        )
    # A template that trims took the mark's space, and so the text's own: drop it here too.
    return text[:at] if text.startswith(_TAG, at) else text[:at].rstrip()
