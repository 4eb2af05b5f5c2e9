"""One model's way from a request to a prompt. Pure: plain calls that any thread may make."""

from __future__ import annotations

import array
from collections.abc import Mapping
from typing import Any, NoReturn

from core.errors import BadRequest
from core.prompt import Prompt, Sample, Samples
from routing.blocks import TOKEN_BYTES, chain
from routing.config import ModelConfig
from routing.library import Library
from routing.messages import Conversation, canonical, dump_tools, normalise, plain
from routing.template import OPTIONS
from routing.weight import exceeds

# With any of these in a request its prompt is more than its messages by the template.
_UNCOMMON = OPTIONS | {"tools", "add_special_tokens", "truncate_prompt_tokens"}
_MEDIA_TOKENS = 1024
_INLINE_ESTIMATE_BYTES = 64 * 1024
_JINJA2_SHARE = 4
_SLICE = 50_000
# A heavier chat would make minijinja hold the interpreter's lock for more than a few milliseconds.
_PATIENT_ABOVE = 256 * 1024
_TEXT = "A headrace leads water to a turbine: 120 l/s, gęś 東京 🙂."
_CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hi"}],
    [
        {"role": "user", "content": "What is a headrace?"},
        {"role": "assistant", "content": "A channel to a turbine."},
        {"role": "user", "content": _TEXT},
    ],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": _TEXT}],
    [{"role": "user", "content": [{"type": "text", "text": text} for text in ("One.", "Two.")]}],
]


class ServedModel:
    """A model with its tokenizer and chat template (either may be missing).

    `keeps_ids`: its prompts have their ids with them. `inline_bytes`: up to which weight a prompt
    is cheaper made on the event loop's thread. `library` has what is made from its files. Raises
    ConfigError when one is missing or broken.
    """

    def __init__(
        self, config: ModelConfig, block_tokens: int, library: Library | None = None
    ) -> None:
        if library is None:
            library = Library()
        self._config = config
        self.max_model_len = config.max_model_len
        self._block_tokens = block_tokens
        self._tokenizer = None if config.tokenizer is None else library.tokenizer(config.tokenizer)
        self._template = library.template(config)
        self.keeps_ids = False
        self.inline_bytes = (
            _INLINE_ESTIMATE_BYTES if self._tokenizer is None else self._tokenizer.inline_bytes
        )
        if self._template is not None and self._template.engine == "jinja2":
            self.inline_bytes //= _JINJA2_SHARE

    def __repr__(self) -> str:
        return f"<ServedModel {self._config.name} {self._tokenizer} {self._template}>"

    @property
    def tokenizes(self) -> bool:
        """Whether its prompts are known by their tokens."""
        return self._tokenizer is not None

    def plain_chat(self, doc: Mapping[str, Any], start: int) -> Prompt | None:
        """As `chat`, of the common kind: text alone, without options, light enough for the event
        loop's thread. None for every other, of which nothing is judged yet. Raises BadRequest.

        The same steps with as few calls as possible, as nearly every request takes them.
        """
        template, tokenizer = self._template, self._tokenizer
        as_parts = template is not None and template.as_parts
        if (template is not None and tokenizer is None) or not _UNCOMMON.isdisjoint(doc):
            return None
        messages = plain(doc.get("messages"), as_parts=as_parts, limit=self.inline_bytes)
        if messages is None:
            return None
        if template is None or tokenizer is None:
            return self._estimate([b"\n".join(map(canonical, messages))], start)
        text = template.render_plain(messages)
        config = self._config
        if len(text) * 4 > config.max_prompt_bytes:
            self._check_bytes([text], "messages")
        ids = tokenizer.encode(text, special=False)
        length = len(ids) // TOKEN_BYTES
        size = self._block_tokens
        kept = ids if self.keeps_ids else None
        return Prompt(config.name, length, length, True, chain(ids, size, start), size, kept)

    def chat(self, doc: Mapping[str, Any], start: int, *, patient: bool) -> Prompt:
        """`start` seeds the chain of hashes, `patient` says that the event loop runs beside. Raises
        BadRequest."""
        template = self._template
        conversation = normalise(
            doc.get("messages"),
            as_parts=template is not None and template.as_parts,
            developer=template is None or template.knows_developer,
        )
        if conversation.media and not self._config.multimodal:
            raise BadRequest(
                f"the model {self._config.name} takes text only; "
                "remove the content parts that are not text",
                param="messages",
            )
        tools = dump_tools(doc.get("tools"))
        if conversation.media:
            conversation = normalise(doc.get("messages"), as_parts=True, developer=True)
        if template is None or conversation.media:
            return self._estimate(
                [_canonical_chat(conversation, tools)], start, len(conversation.media)
            )
        if patient:
            patient = exceeds([conversation.messages, tools, doc.get("documents")], _PATIENT_ABOVE)
        text = template.render(conversation.messages, tools, doc, patient=patient)
        self._check_bytes([text], "messages")
        if self._tokenizer is None:
            return self._estimate([_utf8(text)], start)
        ids = self._tokenizer.encode(text, special=doc.get("add_special_tokens") is True)
        return self._exact([ids], doc, start)

    def completion(self, doc: Mapping[str, Any], start: int) -> Prompt:
        """As `chat`, of `prompt`: text, token ids, or a list of either."""
        prompt = doc.get("prompt")
        if prompt is None and doc.get("prompt_embeds") is not None:
            return self._estimate([b""], start)
        if isinstance(prompt, str):
            texts: list[str] = [prompt]
        elif not isinstance(prompt, list) or not prompt:
            _refuse_prompt()
        elif isinstance(prompt[0], str):
            if not all(isinstance(text, str) for text in prompt):
                _refuse_prompt()
            texts = prompt
        else:
            lists = prompt if isinstance(prompt[0], list) else [prompt]
            return self._exact([_ids(numbers) for numbers in lists], doc, start)
        self._check_bytes(texts, "prompt")
        if self._tokenizer is None:
            return self._estimate([_utf8(text) for text in texts], start)
        special = doc.get("add_special_tokens") is not False
        if len(texts) == 1:
            return self._exact([self._tokenizer.encode(texts[0], special=special)], doc, start)
        return self._exact(self._tokenizer.encode_all(texts, special=special), doc, start)

    def samples(self) -> Samples | None:
        """None when its tokens are estimated."""
        tokenizer = self._tokenizer
        if tokenizer is None:
            return None
        text = Sample({"prompt": _TEXT}, _numbers(tokenizer.encode(_TEXT, special=True)))
        chats = []
        if self._template is not None:
            for messages in _CHATS:
                conversation = normalise(
                    messages, as_parts=self._template.as_parts, developer=True
                ).messages
                try:
                    rendered = self._template.render(conversation, None, {})
                except BadRequest:  # it has no system messages, or the like
                    continue
                ids = _numbers(tokenizer.encode(rendered, special=False))
                chats.append(Sample({"messages": messages}, ids))
        if len({len(sample.ids) for sample in chats}) < 2:
            chats = []
        return Samples(chats, text)

    def check_length(self, prompt: Prompt, max_tokens: int | None) -> None:
        """Raises BadRequest in vLLM's words. Nothing to say when the limit is not known."""
        limit = self.max_model_len
        if limit is None:
            return
        if max_tokens is not None and max_tokens > limit:
            raise BadRequest(
                f"max_tokens={max_tokens} cannot be greater than max_model_len={limit}. "
                f"Please request fewer output tokens. (parameter=max_tokens, value={max_tokens})",
                param="max_tokens",
            )
        if not prompt.exact:
            return
        longest = prompt.longest
        if longest > limit:
            fault = (
                f"your prompt contains {longest} input tokens, which exceeds this limit even "
                "without any output tokens. Please reduce the length of the input prompt."
            )
        elif max_tokens is not None and longest + max_tokens > limit:
            fault = (
                f"you requested {max_tokens} output tokens and your prompt contains {longest} "
                f"input tokens, for a total of {longest + max_tokens} tokens. Please reduce the "
                "length of the input prompt or the number of requested output tokens."
            )
        else:
            return
        raise BadRequest(
            f"This model's maximum context length is {limit} tokens. However, {fault} "
            f"(parameter=input_tokens, value={longest})",
            code="context_length_exceeded",
            param="input_tokens",
        )

    def _exact(self, prompts: list[bytes], doc: Mapping[str, Any], start: int) -> Prompt:
        if (keep := doc.get("truncate_prompt_tokens")) is not None:
            prompts = [self._truncated(ids, keep, doc) for ids in prompts]
        return self._prompt(prompts, start, True)

    def _estimate(self, prompts: list[bytes], start: int, media: int = 0) -> Prompt:
        return self._prompt(prompts, start, False, media * _MEDIA_TOKENS)

    def _prompt(self, prompts: list[bytes], start: int, exact: bool, more: int = 0) -> Prompt:
        """`prompts` as bytes, `TOKEN_BYTES` per token. The longest of a batch is hashed."""
        first = prompts[0]
        if len(prompts) > 1:
            first = max(prompts, key=len)
        longest = len(first) // TOKEN_BYTES + more
        length = longest if len(prompts) == 1 else sum(map(len, prompts)) // TOKEN_BYTES
        if not exact:
            longest, length = max(longest, 1), max(length, 1)
        size = self._block_tokens
        blocks = chain(first, size, start)
        kept = first if self.keeps_ids and exact and len(prompts) == 1 else None
        return Prompt(self._config.name, length, longest, exact, blocks, size, kept)

    def _truncated(self, ids: bytes, keep: object, doc: Mapping[str, Any]) -> bytes:
        """The ids that the engine will keep (an invalid wish is for the engine to judge)."""
        if keep == -1:
            keep = self.max_model_len
        if not isinstance(keep, int) or keep < 1:
            return ids
        size = keep * TOKEN_BYTES
        return ids[:size] if doc.get("truncation_side") == "right" else ids[-size:]

    def _check_bytes(self, texts: list[str], param: str) -> None:
        limit = self._config.max_prompt_bytes
        size = sum(map(len, texts))
        if size * 4 <= limit:  # no character takes more bytes than four
            return
        if size <= limit:
            size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        if size > limit:
            raise BadRequest(
                f"the prompt has {size} bytes or more; this gateway accepts at most {limit}",
                code="context_length_exceeded",
                param=param,
            )


def _canonical_chat(conversation: Conversation, tools: list[dict[str, Any]] | None) -> bytes:
    """A stand-in for the rendered text that grows at its end when the chat does. Parts that are
    not text are there as digests."""
    pieces = [canonical(tools)] if tools else []
    pieces.extend([canonical(message) for message in conversation.messages])
    return b"\n".join(pieces)


def _numbers(ids: bytes) -> list[int]:
    return array.array("I", ids).tolist()


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest("the prompt holds text that is not Unicode (a lone surrogate)") from error


def _ids(numbers: object) -> bytes:
    """Token ids as bytes, in slices, so that a long list does not hold the interpreter's lock."""
    if not isinstance(numbers, list):
        _refuse_prompt()
    ids = array.array("I")
    try:
        for at in range(0, len(numbers), _SLICE):
            ids.fromlist(numbers[at : at + _SLICE])
    except (TypeError, OverflowError) as error:
        raise BadRequest("token ids must be integers of 32 bits", param="prompt") from error
    return ids.tobytes()


def _refuse_prompt() -> NoReturn:
    raise BadRequest(
        "`prompt` must be text, a list of token ids, or a list of either", param="prompt"
    )
