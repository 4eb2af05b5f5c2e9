"""The product in one file: what happens to one request, in order.

authenticate -> understand -> tokenize once -> reserve -> lease a replica -> relay -> settle ->
record. Whatever is borrowed on the way is given back in one place, on every way out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple

from core.errors import (
    ClientGone,
    GatewayError,
    MethodNotAllowed,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from core.exchange import Exchange, Header
from core.principal import Principal
from proxy.access_log import AccessRecord, milliseconds
from proxy.answers import answer_error, answer_json
from proxy.call import REFUSED
from proxy.delivery import Delivery
from proxy.inference import Asked, Inference, note_reservation
from proxy.passthrough import PassthroughRule, delivery_of, model_of
from proxy.services import Services
from proxy.stored import PATH as STORED
from proxy.stored import ROUTE as STORED_ROUTE
from proxy.stored import Deliver, Stored, parse_path
from proxy.stored import delivery_of as stored_delivery
from proxy.surfaces.registry import SURFACES
from proxy.surfaces.surface import Surface
from proxy.turns import LARGE_BYTES

_log = logging.getLogger("headrace.pipeline")

MODELS = "/v1/models"


class Free(NamedTuple):
    """What costs no tokens."""

    exchange: Exchange
    record: AccessRecord
    principal: Principal
    model: str
    delivery: Delivery


class Pipeline:
    """Handles exchanges, whatever protocol they came by. `in_flight` of them have begun and not
    ended; whenever that becomes none `on_quiet` is called."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._now = services.clock
        self._turns = services.turns
        self._inference = Inference(services)
        self.in_flight = 0
        self.on_quiet: Callable[[], None] | None = None
        self._refused = REFUSED if services.body_rules is None else services.body_rules.refused

    def __repr__(self) -> str:
        return f"<Pipeline {self._services.catalog!r}>"

    async def handle(self, exchange: Exchange) -> None:
        """Answer one exchange. Raises nothing but cancellation."""
        observer = self._services.observer
        self.in_flight += 1
        record = observer.open(exchange)
        try:
            await self._route(exchange, record)
        except GatewayError as error:
            self._fail(exchange, record, error)
        except asyncio.CancelledError:
            if not exchange.gone:
                self._fail(exchange, record, GatewayError("The gateway is shutting down."))
                raise
            record.reason = ClientGone.code
            record.status = ClientGone.status
        except Exception:  # noqa: BLE001 - the boundary of the task: nothing is lost silently
            _log.exception("exchange %s failed", exchange.id)
            self._fail(exchange, record, GatewayError("The gateway failed."))
        finally:
            observer.close(exchange, record)
            self.in_flight -= 1
            if not self.in_flight and self.on_quiet is not None:
                self.on_quiet()

    def _route(self, exchange: Exchange, record: AccessRecord) -> Coroutine[Any, Any, None]:
        """What answers this request. To be awaited."""
        request = exchange.request
        surface = SURFACES.get(request.path)
        if surface is None or request.method != "POST":
            return self._elsewhere(exchange, record)
        self._services.admission.check_request()
        record.route = request.path
        return self._infer(surface, exchange, record)

    async def _elsewhere(self, exchange: Exchange, record: AccessRecord) -> None:
        """What is no inference."""
        request = exchange.request
        path, method = request.path, request.method
        if method == "OPTIONS" and self._preflight(exchange, record):
            return
        if path != self._services.health_path:
            self._services.admission.check_request()
        if path in SURFACES:
            record.route = path
            raise _not_allowed("POST")
        if path.startswith(STORED) and self._services.stored is not None:
            await self._ask_again(self._services.stored, exchange, record)
        elif path == MODELS or path.startswith(MODELS + "/"):
            record.route = MODELS
            _only_get(method)
            await self._models(exchange, record, path.removeprefix(MODELS).removeprefix("/"))
        elif path == self._services.health_path:
            record.route = path
            _only_get(method)
            if self._services.admission.draining:
                raise Unavailable("The gateway is stopping.", retry_after_s=5.0)
            record.status = 200
            answer_json(exchange, {"status": "ok"}, self._own_headers(exchange))
        elif (rule := self._services.passthrough.get(path)) is not None:
            await self._pass_on(rule, exchange, record)
        else:
            raise NotFound(f"There is nothing at {method} {path[:256]}.", code="unknown_url")

    async def _infer(self, surface: Surface, exchange: Exchange, record: AccessRecord) -> None:
        services, now = self._services, self._now
        principal = await self._authenticate(exchange, record)
        record.enter("understand", now())
        if len(exchange.request.body) >= LARGE_BYTES:
            await self._turns.wait()
        call = surface.parse(exchange.request.body, self._refused)
        record.stream = call.stream
        model = record.model = services.catalog.resolve(call.model, principal, surface.path)
        if surface.stored and services.stored is not None:
            services.stored.prepare(call.document, exchange, principal)
        own_headers = self._own_headers(exchange)
        asked = Asked(surface, exchange, record, principal, call, own_headers)
        await self._inference.answer(asked, model)

    async def _ask_again(self, stored: Stored, exchange: Exchange, record: AccessRecord) -> None:
        """What was stored is told again: that costs a request, and no tokens."""
        request = exchange.request
        response_id, cancel = parse_path(request.path)
        record.route = STORED_ROUTE
        if request.method != ("POST" if cancel else "GET"):
            raise _not_allowed("POST" if cancel else "GET")
        principal = await self._authenticate(exchange, record)
        model = record.model = stored.model_of(response_id, principal)
        own_headers = self._own_headers(exchange)
        delivery = stored_delivery(exchange, response_id, cancel=cancel, own_headers=own_headers)
        deliver = partial(stored.answer, response_id=response_id)
        await self._deliver_free(Free(exchange, record, principal, model, delivery), deliver)

    async def _pass_on(
        self, rule: PassthroughRule, exchange: Exchange, record: AccessRecord
    ) -> None:
        request, services = exchange.request, self._services
        record.route = rule.path
        if request.method not in rule.methods:
            raise _not_allowed(*rule.methods)
        principal = await self._authenticate(exchange, record)
        name = model_of(rule, request)
        model = record.model = services.catalog.resolve(name, principal, rule.path)
        delivery = delivery_of(request, exchange.id, model, self._own_headers(exchange))
        free = Free(exchange, record, principal, model, delivery)
        await self._deliver_free(free, services.dispatcher.deliver)

    async def _deliver_free(self, free: Free, deliver: Deliver) -> None:
        """What costs a request, and no tokens."""
        exchange, record, principal, model, delivery = free
        record.enter("reserve", self._now())
        reservation = await self._services.limiter.reserve(
            principal,
            model=model,
            prompt_tokens=0,
            max_output_tokens=0,
            route=record.route or "",
            address=exchange.request.peer,
        )
        with reservation:
            note_reservation(record, reservation)
            delivery.limit_headers = reservation.headers
            try:
                await deliver(exchange, delivery, record)
            finally:
                if delivery.begun:
                    reservation.settle(0, 0, 0)
                    record.settled_tokens = 0

    async def _models(self, exchange: Exchange, record: AccessRecord, name: str) -> None:
        principal = await self._authenticate(exchange, record)
        catalog = self._services.catalog
        answer = catalog.card(name, principal) if name else catalog.list(principal)
        record.status = 200
        answer_json(exchange, answer, self._own_headers(exchange))

    async def _authenticate(self, exchange: Exchange, record: AccessRecord) -> Principal:
        record.enter("auth", self._now())
        try:
            principal = await self._services.authenticator.authenticate(exchange.request)
        except Unauthenticated as error:
            record.auth_fault = error.fault or None
            raise
        record.organisation = principal.organisation or None
        record.tenant = principal.tenant
        record.subject = principal.subject or None
        record.key = principal.key or None
        return principal

    def _own_headers(self, exchange: Exchange) -> list[Header]:
        return [
            (b"x-request-id", exchange.id.encode("ascii")),
            *self._services.cors.headers(exchange.request),
        ]

    def _preflight(self, exchange: Exchange, record: AccessRecord) -> bool:
        headers = self._services.cors.preflight(exchange.request)
        if headers is None:
            return False
        record.route = "preflight"
        record.status = 204
        exchange.start(204, headers, 0)
        exchange.finish()
        return True

    def _fail(self, exchange: Exchange, record: AccessRecord, error: GatewayError) -> None:
        """A started answer was already cut by whoever wrote it; this is the other case."""
        record.reason = error.reason
        if error.retry_after_s is not None:
            record.retry_after_ms = milliseconds(error.retry_after_s)
        if limit := error.details.get("limit"):
            record.limit, record.limit_unit = limit["rule"], limit["unit"]
            record.limit_per = limit.get("per")
        if exchange.started:
            return
        record.status = error.status
        answer_error(exchange, error, self._own_headers(exchange))


def _only_get(method: str) -> None:
    if method not in ("GET", "HEAD"):
        raise _not_allowed("GET", "HEAD")


def _not_allowed(*allowed: str) -> MethodNotAllowed:
    return MethodNotAllowed(
        f"This path answers {' and '.join(allowed)} only.",
        headers=[(b"allow", ", ".join(allowed).encode("ascii"))],
    )
