"""What an operator lets clients ask for in a body, beyond what holds everywhere. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from core.errors import BadRequest
from core.prompt import Prompt
from proxy.call import REFUSED, Call, refuse_fields
from proxy.request_config import RequestRule, RequestsConfig
from proxy.surfaces.registry import SURFACES

ROUTES = tuple(SURFACES)
_BOUNDS = ("max_choices", "max_output_tokens")


class Model(Protocol):
    """What is needed of a model's configuration."""

    @property
    def name(self) -> str: ...

    @property
    def aliases(self) -> Sequence[str]: ...

    @property
    def max_model_len(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class BodyRule:
    """What holds for one model at one route. `refused`: fields with the reason. `places`: where the
    configuration says which bound, for the message. `context`: the model's, in tokens."""

    refused: Mapping[str, str]
    max_choices: int | None
    max_output_tokens: int | None
    places: Mapping[str, str]
    context: int | None

    def check(self, call: Call) -> None:
        """Raises BadRequest naming the field and the setting."""
        document = call.document
        if self.refused and not self.refused.keys().isdisjoint(document):
            refuse_fields(document, self.refused)
        answers = _answers(call)
        if self.max_choices is not None and answers > self.max_choices:
            raise self._fault(
                "max_choices",
                _multiplier(call),
                f"makes {answers} answers, and at most {self.max_choices} are accepted here",
            )
        most = self.max_output_tokens
        if most is None:
            return
        each, name = call.max_output_tokens, _bound(call)
        if each is None and answers > most:
            fault = f"makes {answers} answers, and at most {most} tokens are accepted here"
            raise self._fault("max_output_tokens", _multiplier(call), fault)
        if each is not None and each * answers > most:
            times = f" times {answers} answers" if answers > 1 else ""
            fault = f"of {each}{times} is more than the {most} tokens that are accepted here"
            raise self._fault("max_output_tokens", name, fault)

    def bound_output(self, call: Call, prompt: Prompt) -> int | None:
        """The bound of each answer; one is set where the client, whose call was checked, set none.
        What is left of the context is less than some engines would refuse."""
        if self.max_output_tokens is None or call.max_output_tokens is not None:
            return call.max_output_tokens
        each = self.max_output_tokens // _answers(call)
        if self.context is not None:
            each = max(1, min(each, self.context - prompt.longest))
        call.document[call.bound] = each
        return each

    def _fault(self, setting: str, name: str, fault: str) -> BadRequest:
        return BadRequest(f"`{name}` {fault} ({self.places[setting]}).", param=name)


class BodyRules:
    """Every model's rule at each route. `refused`: what none of them lets through, to be refused
    before the model is known."""

    def __init__(self, config: RequestsConfig, models: Sequence[Model]) -> None:
        allowed = {*config.allow_fields}.union(*(rule.allow_fields or () for rule in config.rules))
        self.refused = {name: why for name, why in REFUSED.items() if name not in allowed}
        self._by_place = {
            (model.name, route): self._make(config, model, route)
            for model in models
            for route in ROUTES
        }

    def __repr__(self) -> str:
        return f"<BodyRules {len(self._by_place)} places>"

    def of(self, model: str, route: str) -> BodyRule:
        """`model` by its own name."""
        return self._by_place[model, route]

    def _make(self, config: RequestsConfig, model: Model, route: str) -> BodyRule:
        number, rule = _first(config.rules, model, route) or (0, None)
        settings: dict[str, Any] = {}
        places = {}
        for name in ("deny_fields", "allow_fields", *_BOUNDS):
            own = None if rule is None else getattr(rule, name)
            settings[name] = getattr(config, name) if own is None else own
            places[name] = f"requests.{name}" if own is None else f"requests.rules[{number}].{name}"
        refused = {
            name: why
            for name, why in REFUSED.items()
            if name not in self.refused and name not in settings["allow_fields"]
        }
        why = f"the rule is `{places['deny_fields']}`"
        refused.update((name, why) for name in settings["deny_fields"])
        return BodyRule(
            refused=refused,
            max_choices=settings["max_choices"],
            max_output_tokens=settings["max_output_tokens"],
            places={name: f"`{places[name]}`" for name in _BOUNDS},
            context=model.max_model_len,
        )


def make_body_rules(config: RequestsConfig, models: Sequence[Model]) -> BodyRules | None:
    """None: nothing holds but what holds everywhere, and nothing needs to be looked up."""
    return None if config == RequestsConfig() else BodyRules(config, models)


def _first(
    rules: Sequence[RequestRule], model: Model, route: str
) -> tuple[int, RequestRule] | None:
    for number, rule in enumerate(rules):
        if rule.routes and route not in rule.routes:
            continue
        if not rule.models or not {model.name, *model.aliases}.isdisjoint(rule.models):
            return number, rule
    return None


def _answers(call: Call) -> int:
    return call.choices * _prompts(call)


def _prompts(call: Call) -> int:
    """How many prompts a completion has: a list holds several texts, several lists of tokens, or
    the tokens of one."""
    prompt = call.document.get("prompt")
    if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int):
        return 1
    return len(prompt)


def _multiplier(call: Call) -> str:
    """The field that makes many answers."""
    if call.choices == 1:
        return "prompt"
    return "n" if call.document.get("n") == call.choices else "best_of"


def _bound(call: Call) -> str:
    name = "max_completion_tokens"
    return call.bound if call.document.get(name) is None else name
