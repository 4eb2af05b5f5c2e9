"""One inference that is understood: prompt, reservation, delivery, and what is charged for it."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

from core.errors import GatewayError
from core.exchange import Exchange, Header
from core.principal import Principal
from core.prompt import Prompt
from proxy.access_log import AccessRecord
from proxy.body_rules import BodyRule
from proxy.call import Call
from proxy.claims import claim_of
from proxy.delivery import Delivery
from proxy.headers import upstream_headers
from proxy.services import Reservation, Services
from proxy.surfaces.surface import Kind, Surface
from proxy.token_ids import ids_of
from proxy.turns import LARGE_BYTES
from proxy.variants import Variants, may_fall_back

_NO_BLOCKS = 64


class Asked(NamedTuple):
    """What an exchange asks for. `own_headers`: those that every answer carries."""

    surface: Surface
    exchange: Exchange
    record: AccessRecord
    principal: Principal
    call: Call
    own_headers: Sequence[Header]


class Inference:
    """What the pipeline does once it knows what is asked for."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._now = services.clock
        self._turns = services.turns

    def __repr__(self) -> str:
        return f"<Inference {self._services.variants}>"

    def answer(self, asked: Asked, model: str) -> Coroutine[Any, Any, None]:
        """By `model`, or by another one where the configuration says so. To be awaited."""
        variants, stored = self._services.variants, self._services.stored
        if variants is None:
            return self._serve(asked, model)
        if stored is not None and (made_by := stored.made_by(asked.call.document)) is not None:
            asked.record.model = made_by
            return self._serve(asked, made_by)
        return self._serve_one_of(variants, asked, model)

    async def _serve_one_of(self, variants: Variants, asked: Asked, model: str) -> None:
        """By `model`, by a canary in its place, or by what follows when that fails before anything
        was sent."""
        record, exchange = asked.record, asked.exchange
        chosen = variants.chosen(model, asked.principal, exchange.request, exchange.id)
        failure: GatewayError | None = None
        for candidate in (chosen, *variants.after(chosen)):
            told: list[Header] = []
            if candidate != model:
                record.model, record.asked_model = candidate, model
                told.append((b"x-headrace-model", candidate.encode("utf-8")))
            if failure is not None:
                told.append((b"x-headrace-fallback", chosen.encode("utf-8")))
            try:
                await self._serve(asked, candidate, told)
            except GatewayError as error:
                # What a fallback has against the request says nothing about the model before it.
                failure = failure or error
                if exchange.started or not may_fall_back(error):
                    break
            else:
                return
        assert failure is not None
        raise failure

    async def _serve(self, asked: Asked, model: str, told: Sequence[Header] = ()) -> None:
        """`told`: headers of the answer about how it came about."""
        surface, exchange, record, principal, call, _ = asked
        services, now = self._services, self._now
        rule = None
        if services.body_rules is not None:
            rule = services.body_rules.of(model, surface.path)
            rule.check(call)
        own_fields = model not in services.elsewhere
        salt = services.salt_of(principal) if own_fields else ""

        record.enter("tokenize", now())
        prompt = await self._prompt(asked, model, salt)
        record.prompt_tokens = prompt.length
        priority = principal.priority
        if priority and model not in services.prioritized:
            priority = 0
        delivery = _delivery(
            asked, prompt, rule=rule, salt=salt, priority=priority, own_fields=own_fields
        )
        delivery.claim = claim_of(principal, exchange.request, call.document)
        budgets = services.observer.budgets
        if budgets is not None:
            due_at = budgets.first_token_by(exchange.request, principal.tenant, model)
            delivery.first_token_by, delivery.refuse_late = due_at, budgets.refuse_late
        delivery.explained = principal.tenant in services.explained

        record.enter("reserve", now())
        reservation = await services.limiter.reserve(
            principal,
            model=model,
            prompt_tokens=prompt.length,
            max_output_tokens=delivery.max_output_tokens,
            route=surface.path,
            address=exchange.request.peer,
        )
        with reservation:
            note_reservation(record, reservation)
            reservation.follow(partial(services.dispatcher.relayed_tokens, delivery))
            delivery.limit_headers = [*reservation.headers, *told] if told else reservation.headers
            if len(exchange.request.body) >= LARGE_BYTES:
                await self._turns.wait()
            try:
                if surface.stored and services.stored is not None:
                    await services.stored.create(exchange, delivery, record, call.document)
                else:
                    await services.dispatcher.deliver(exchange, delivery, record)
            finally:
                if delivery.begun:
                    if call.background and not delivery.usage_known:  # most is yet to come
                        delivery.output_tokens = reservation.reserved_tokens - prompt.length
                    self._settle(reservation, delivery, record, model)

    def _settle(
        self, reservation: Reservation, delivery: Delivery, record: AccessRecord, model: str
    ) -> None:
        prompt_tokens, output_tokens = delivery.prompt_tokens, delivery.output_tokens
        cached_tokens = delivery.cached_tokens or 0
        reservation.settle(prompt_tokens, cached_tokens, output_tokens)
        record.settled_tokens = prompt_tokens + output_tokens
        record.prompt_tokens = prompt_tokens
        record.cached_tokens = delivery.cached_tokens
        record.completion_tokens = output_tokens
        record.tokens_estimated = None if delivery.usage_known else True
        record.cost_units = self._services.limiter.cost(
            model, prompt_tokens, cached_tokens, output_tokens
        )

    async def _prompt(self, asked: Asked, model: str, salt: str) -> Prompt:
        surface, call, prompter = asked.surface, asked.call, self._services.prompter
        document = call.document
        if surface.question is not None:
            question = partial(surface.question, document)
            large = len(asked.exchange.request.body) >= LARGE_BYTES
            document = await self._turns.aside(question) if large else question()
        if surface.kind is Kind.FREE:
            if "messages" in document:  # for what the prompter refuses
                await prompter.chat(model, document, salt)
            return Prompt(model, 0, 0, False, (), _NO_BLOCKS)
        # Completions alone have their body as it is: there `messages` mean nothing.
        asks = surface.question is not None and "messages" in document
        chat = asks or surface.kind is Kind.CHAT
        render = prompter.chat if chat else prompter.completion
        prompt = await render(model, document, salt)
        prompter.check_length(model, prompt, call.max_output_tokens)
        return prompt


def _delivery(
    asked: Asked,
    prompt: Prompt,
    *,
    rule: BodyRule | None,
    salt: str,
    priority: int,
    own_fields: bool,
) -> Delivery:
    surface, exchange, call = asked.surface, asked.exchange, asked.call
    headers = upstream_headers(exchange.request, exchange.id)
    if priority and not surface.ranked:
        headers.append((b"x-vllm-priority", b"%d" % priority))
        priority = 0
    max_output = call.max_output_tokens if rule is None else rule.bound_output(call, prompt)
    if max_output is not None:
        max_output *= call.choices
    return Delivery(
        path=surface.upstream_path,
        headers=headers,
        body=call.upstream_body(
            prompt.model, salt if surface.salted else "", priority, own_fields=own_fields
        ),
        prompt=prompt,
        max_output_tokens=max_output,
        stream=call.stream,
        strip_usage=call.stream and not call.wants_usage,
        own_headers=asked.own_headers,
        ids=None if prompt.ids is None else ids_of(surface.path, call.document, prompt),
        empty_events=call.choices if surface.empty_role else 0,
        shape=surface.shape,
    )


def note_reservation(record: AccessRecord, reservation: Reservation) -> None:
    record.reserved_tokens = reservation.reserved_tokens
    if reservation.degraded:
        record.limits_degraded = True
    if reservation.shadow_refusals:
        record.shadow_refusals = list(reservation.shadow_refusals)
