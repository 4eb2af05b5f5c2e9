"""What the admin listener answers to the question where a request would go. Charges nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from core.claim import Claim
from core.errors import BadRequest, GatewayError
from core.principal import Principal
from core.prompt import Prompt
from core.section import Section
from proxy.serve.prepared import Prepared
from routing.explain import Explanation
from routing.salts import CacheSalts


class Question(Section):
    """A body of a chat (with `messages`) or of a completion (with `prompt`), and whose it is."""

    request: dict[str, object]
    tenant: str = ""
    organisation: str = ""
    session: str = ""


class Router(Protocol):
    def explain(
        self, model: str, prompt: Prompt, max_output_tokens: int | None, claim: Claim
    ) -> Explanation: ...


class Explainer:
    """Answers by the configuration in use at that moment."""

    def __init__(self, prepared: Callable[[], Prepared], router: Router) -> None:
        self._prepared = prepared
        self._router = router

    def __repr__(self) -> str:
        return f"<Explainer of {self._router}>"

    async def answer(self, body: bytes) -> tuple[int, Mapping[str, object]]:
        """Status and document of the answer to `body`, a `Question` in JSON."""
        try:
            question = msgspec.json.decode(body, type=Question)
            return 200, await self._explain(question)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return 400, {"error": str(error)}
        except GatewayError as error:
            return error.status, {"error": error.message}

    async def _explain(self, question: Question) -> Mapping[str, object]:
        prepared = self._prepared()
        config, prompter, request = prepared.config, prepared.prompter, question.request
        model = prompter.resolve(request.get("model"))
        principal = Principal(question.tenant, organisation=question.organisation)
        salt = CacheSalts(prepared.cache_secret, config.routing.share_cache).of(principal)
        make = prompter.completion if "prompt" in request else prompter.chat
        prompt = await make(model, request, salt)
        bases = {one.name: one.adapter_of for one in config.models}
        told = self._router.explain(
            bases[model] or model,
            prompt,
            _max_output_tokens(request),
            Claim(question.tenant, session=question.session),
        )
        return {
            "model": model,
            "prompt_tokens": prompt.length,
            "exact": prompt.exact,
            "blocks": len(prompt.blocks),
            **told._asdict(),
            "targets": [
                target._asdict() | {"score": target.score and target.score._asdict()}
                for target in told.targets
            ],
        }


def _max_output_tokens(request: Mapping[str, object]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = request.get(name)
        if value is not None:
            if type(value) is not int or value < 0:
                raise BadRequest(f"`{name}` must be a number of tokens.", param=name)
            return value
    return None
