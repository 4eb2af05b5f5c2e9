"""Responses that a replica has stored: asked for and cancelled where they are, and gone on with.

A `previous_response_id` or the id in a path is somebody's own (`pins.py`), or it does not exist.
Where no replica is known to hold it, each is asked in turn: one that answers 404 is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from core.errors import NotFound, Unavailable
from core.exchange import Exchange, Header
from core.principal import Principal
from core.prompt import Prompt
from proxy.access_log import AccessRecord
from proxy.delivery import Delivery
from proxy.headers import upstream_headers
from proxy.pins import Pins
from proxy.surfaces.plain import no_usage
from proxy.surfaces.responses import RESPONSES

PATH = RESPONSES.path + "/"
ROUTE = PATH + "{id}"
_PATHS = re.compile(re.escape(PATH) + r"([A-Za-z0-9_-]{1,256})(/cancel)?")
_QUERY = re.compile(
    r"(?:stream=(?:true|false)|starting_after=[0-9]{1,9}|include(?:%5B%5D|\[\])?=[a-z_.]{1,64}|&)*"
)
_BLOCK_TOKENS = 64

# The replica tells again what was charged when the response was made.
_SHAPE = replace(RESPONSES.shape, usage=no_usage)

Deliver = Callable[[Exchange, Delivery, AccessRecord], Awaitable[None]]
ReplicasOf = Callable[[str], Sequence[str]]
"""The ids of all replicas of a model, whether they are well or not."""


class Stored:
    """What one worker knows of stored responses."""

    def __init__(
        self,
        pins: Pins,
        models: Sequence[str],
        replicas_of: ReplicasOf,
        deliver: Deliver,
        now: Callable[[], float],
    ) -> None:
        """`models`: all that replicas serve."""
        self._pins = pins
        self._models = models
        self._replicas_of = replicas_of
        self._deliver = deliver
        self._now = now

    def __repr__(self) -> str:
        return f"<Stored {self._pins!r}>"

    def prepare(self, document: dict[str, Any], exchange: Exchange, principal: Principal) -> None:
        """Of a new response: choose its id, and see that the one before it is the caller's."""
        document["request_id"] = self._pins.new_id(exchange.id, principal.tenant)
        previous = document.get("previous_response_id")
        if previous is not None:
            self._own(previous, principal, "previous_response_id")

    async def create(
        self,
        exchange: Exchange,
        delivery: Delivery,
        record: AccessRecord,
        document: dict[str, Any],
    ) -> None:
        """Make the response of `document`, which was prepared, and remember where."""
        response_id, model = document["request_id"], delivery.prompt.model

        def made(replica: str) -> None:
            self._pins.note(response_id, replica, model, self._now())

        delivery.on_start = made
        previous = document.get("previous_response_id")
        if previous is None:
            await self._deliver(exchange, delivery, record)
        else:
            await self._at_its_replica(exchange, delivery, record, previous, models=[model])

    def made_by(self, document: dict[str, Any]) -> str | None:
        """The model that made what this goes on with, if it is known. No other can go on."""
        previous = document.get("previous_response_id")
        pin = None if previous is None else self._pins.find(previous, self._now())
        return None if pin is None else pin.model

    def model_of(self, response_id: str, principal: Principal) -> str:
        """The model that made it, as far as that is known; any other otherwise. Raises NotFound for
        what is not the caller's."""
        self._own(response_id, principal, "response_id")
        pin = self._pins.find(response_id, self._now())
        return self._models[0] if pin is None else pin.model

    async def answer(
        self,
        exchange: Exchange,
        delivery: Delivery,
        record: AccessRecord,
        response_id: str,
    ) -> None:
        """Show or cancel what one of the replicas holds."""
        models = self._models
        await self._at_its_replica(exchange, delivery, record, response_id, models=models)

    def _own(self, response_id: object, principal: Principal, param: str) -> None:
        """Raises NotFound for what is not the caller's, as for what is nobody's."""
        if not isinstance(response_id, str) or not self._pins.owned(response_id, principal.tenant):
            raise _unknown(str(response_id), param)

    async def _at_its_replica(
        self,
        exchange: Exchange,
        delivery: Delivery,
        record: AccessRecord,
        response_id: str,
        *,
        models: Sequence[str],
    ) -> None:
        pin = self._pins.find(response_id, self._now())
        if pin is not None:
            self._aim(delivery, pin.model, pin.replica)
            await self._deliver(exchange, delivery, record)
            return
        delivery.seeking = True
        failure: Unavailable | None = None
        for model, replica in self._everywhere(models):
            self._aim(delivery, model, replica)
            try:
                await self._deliver(exchange, delivery, record)
            except NotFound:
                continue
            except Unavailable as error:  # it may be the one
                failure = error
                continue
            self._pins.note(response_id, replica, model, self._now())
            return
        raise failure or _unknown(response_id, "response_id")

    def _everywhere(self, models: Sequence[str]) -> Iterator[tuple[str, str]]:
        for model in models:
            for replica in self._replicas_of(model):
                yield model, replica

    def _aim(self, delivery: Delivery, model: str, replica: str) -> None:
        """At that replica alone."""
        others = self._replicas_of(model)
        delivery.exclude = [other for other in others if other != replica]
        delivery.prompt = delivery.prompt._replace(model=model)


def parse_path(path: str) -> tuple[str, bool]:
    """The id in the path of a stored response, and whether it is to be cancelled. Raises
    NotFound."""
    match = _PATHS.fullmatch(path)
    if match is None:
        raise NotFound(f"There is nothing at {path[:256]}.", code="unknown_url")
    return match[1], match[2] is not None


def delivery_of(
    exchange: Exchange, response_id: str, *, cancel: bool, own_headers: Sequence[Header]
) -> Delivery:
    """What is sent to a replica that may hold it."""
    query = exchange.request.query
    path = PATH + response_id + ("/cancel" if cancel else "")
    if query and not cancel and _QUERY.fullmatch(query):
        path += "?" + query
    stream = "stream=true" in path
    return Delivery(
        path=path.encode("ascii"),
        headers=upstream_headers(exchange.request, exchange.id),
        body=b"",
        prompt=Prompt("", 0, 0, False, (), _BLOCK_TOKENS),
        max_output_tokens=0,
        stream=stream,
        strip_usage=False,
        own_headers=own_headers,
        shape=_SHAPE,
        method=b"POST" if cancel else b"GET",
    )


def _unknown(response_id: str, param: str) -> NotFound:
    message = f"The response `{response_id[:128]}` does not exist."
    return NotFound(message, code="response_not_found", param=param)
