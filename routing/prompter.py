"""From a request's body to a `Prompt`: render, tokenize and hash once, for all who need it.

Performs: large prompts go to a thread, so that the event loop never waits for one. All the work
of one prompt is one plain call (`ServedModel`), on the loop's thread or on that other.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any

from core.errors import ConfigError, NotFound
from core.identity import identity
from core.metrics import Metrics
from core.prompt import Prompt, Samples
from routing.blocks import seed
from routing.config import ModelConfig, RoutingConfig, complete
from routing.library import Library
from routing.served_model import ServedModel
from routing.weight import exceeds

_SEEDS = 4096
_THREADS = 2
_SWITCH_S = 0.0002


class Prompter:
    """The models by name. Built before workers fork; each worker then calls `use_metrics`, and
    `close` when it ends.

    `drawn` seeds the hashes of blocks when no secret is configured. Raises ConfigError when a
    tokenizer or template is missing or broken, or two models share a name.
    """

    def __init__(
        self,
        models: Sequence[ModelConfig],
        config: RoutingConfig,
        metrics: Metrics | None = None,
        *,
        drawn: bytes = b"",
        previous: Prompter | None = None,
    ) -> None:
        # Workers forked from this process share it.
        self._drawn = drawn or os.urandom(32)
        secret = config.secret.reveal().encode() if config.secret else self._drawn
        self.made_of = _made_of(models, config)
        self._seed = lru_cache(_SEEDS)(partial(seed, secret))
        self._library: Library = Library(None if previous is None else previous._library)
        self._models: dict[str, ServedModel] = {}
        self._names: dict[str, str] = {}
        for model in complete(models):
            for name in (model.name, *model.aliases):
                if name in self._names:
                    raise ConfigError(
                        f"two models answer to the name {name!r}; rename one of them or its alias"
                    )
                self._names[name] = model.name
            self._models[model.name] = ServedModel(model, config.block_tokens, self._library)
        self._library.complete()
        self._counters: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {}
        self._threads: ThreadPoolExecutor | None = None
        if metrics is not None:
            self.use_metrics(metrics)

    def __repr__(self) -> str:
        return f"<Prompter {list(self._models.values())}>"

    def renewed(self, models: Sequence[ModelConfig], config: RoutingConfig) -> Prompter:
        """The one for a changed configuration, which shares what has not changed; this one if
        nothing has. Raises ConfigError."""
        if _made_of(models, config) == self.made_of:
            return self
        return Prompter(models, config, drawn=self._drawn, previous=self)

    def use_metrics(self, metrics: Metrics) -> None:
        """Count prompts there from now on."""
        counter = metrics.counter(
            "headrace_prompts_total",
            "Prompts by model; exact is false when their tokens are estimated from bytes.",
            ("model", "exact"),
        )
        for name in self._models:
            estimates = counter.labels(name, "false").inc
            self._counters[name] = (estimates, counter.labels(name, "true").inc)

    def keep_ids(self, keep: bool) -> None:
        """Whether prompts have their ids with them from now on."""
        for served in self._models.values():
            served.keeps_ids = keep

    def samples(self, model: str) -> Samples | None:
        """Prompts by which its replicas can show that they make the same; None when its tokens are
        estimated."""
        return self._models[model].samples()

    def resolve(self, name: object) -> str:
        """The model that `name` (a name or an alias) stands for. Raises NotFound."""
        model = self._names.get(name) if isinstance(name, str) else None
        if model is None:
            raise NotFound(
                f"The model `{str(name)[:256]}` does not exist.",
                code="model_not_found",
                param="model",
            )
        return model

    def start_of(self, model: str) -> Callable[[str | None, str], int] | None:
        """How the chains of its prompts' blocks start, by adapter and salt, for who knows prompts
        by their tokens; None when its tokens are estimated."""
        if not self._models[model].tokenizes:
            return None
        return lambda adapter, salt: self._seed(adapter or model, salt)

    async def chat(self, model: str, doc: Mapping[str, Any], salt: str) -> Prompt:
        """The prompt of a chat request. Raises BadRequest."""
        served = self._models[model]
        start = self._seed(model, salt)
        if (prompt := served.plain_chat(doc, start)) is not None:
            if (counters := self._counters.get(model)) is not None:
                counters[prompt.exact]()
            return prompt
        parts = [doc.get("messages"), doc.get("tools"), doc.get("documents")]
        if exceeds(parts, served.inline_bytes):
            prompt = await self._aside(partial(served.chat, doc, start, patient=True))
        else:
            prompt = served.chat(doc, start, patient=False)
        return self._counted(prompt)

    async def completion(self, model: str, doc: Mapping[str, Any], salt: str) -> Prompt:
        """The prompt of a completion request: text, token ids, or a list of either. Raises
        BadRequest."""
        served = self._models[model]
        start = self._seed(model, salt)
        if exceeds([doc.get("prompt")], served.inline_bytes):
            prompt = await self._aside(partial(served.completion, doc, start))
        else:
            prompt = served.completion(doc, start)
        return self._counted(prompt)

    def check_length(self, model: str, prompt: Prompt, max_tokens: int | None) -> None:
        """Raises BadRequest, in vLLM's words, when the prompt and `max_tokens` do not fit. An
        estimated prompt is left to the engine."""
        served = self._models[model]
        limit = served.max_model_len
        # Most prompts fit by far: the fault is looked for only if there is one.
        if limit is not None and prompt.longest + (max_tokens or 0) > limit:
            served.check_length(prompt, max_tokens)

    def _counted(self, prompt: Prompt) -> Prompt:
        if (counters := self._counters.get(prompt.model)) is not None:
            counters[prompt.exact]()
        return prompt

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _aside(self, work: Callable[[], Prompt]) -> Prompt:
        # Made at the first use: a thread from before a fork would be dead in the child.
        if self._threads is None:
            # The loop gets the interpreter's lock back within this time, not within 5 ms. It asks
            # for it at each event (uvloop polls without it), so that many short waits add up.
            sys.setswitchinterval(_SWITCH_S)
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-prompt")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _made_of(models: Sequence[ModelConfig], config: RoutingConfig) -> Hashable:
    return identity((tuple(models), config.block_tokens, config.secret))
