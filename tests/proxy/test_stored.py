from __future__ import annotations

from typing import Any

import pytest
from fakes import FakeExchange, request

from core.errors import GatewayError, NotFound, Unavailable
from core.exchange import Exchange
from core.principal import Principal
from core.prompt import Prompt
from proxy.access_log import AccessRecord
from proxy.delivery import Delivery
from proxy.pins import Pins
from proxy.stored import Stored, delivery_of, parse_path

ACME, BETA = Principal("acme"), Principal("beta")
REPLICAS = {"m": ["r0", "r1", "r2"], "n": ["s0"]}


class Setting:
    """`holder` answers, others answer as `elsewhere`."""

    def __init__(self, holder: str = "r1", elsewhere: GatewayError | None = None) -> None:
        self.asked: list[str] = []
        self.holder = holder
        self.elsewhere = elsewhere or NotFound("No.")
        self.exchange = FakeExchange(request(path="/v1/responses"))
        self.record = AccessRecord(request_id="a")
        self.stored = self.worker(Pins(b"secret"))

    def worker(self, pins: Pins) -> Stored:
        return Stored(pins, ["n", "m"], lambda model: REPLICAS[model], self._deliver, lambda: 1.0)

    async def _deliver(self, exchange: Exchange, delivery: Delivery, record: AccessRecord) -> None:
        allowed = [r for r in REPLICAS[delivery.prompt.model] if r not in delivery.exclude]
        replica = allowed[0] if len(allowed) == 1 else self.holder
        self.asked.append(replica)
        if replica != self.holder:
            raise self.elsewhere
        if delivery.on_start is not None:
            delivery.on_start(replica)

    def delivery(self) -> Delivery:
        delivery = delivery_of(self.exchange, "resp_x", cancel=False, own_headers=())
        delivery.prompt = Prompt("m", 5, 5, True, (), 64)
        return delivery

    async def create(self, **document: Any) -> str:
        self.stored.prepare(document, self.exchange, ACME)
        await self.stored.create(self.exchange, self.delivery(), self.record, document)
        return str(document["request_id"])

    async def show(self, response_id: str, stored: Stored | None = None) -> None:
        stored = stored or self.stored
        delivery = self.delivery()
        await stored.answer(self.exchange, delivery, self.record, response_id)


async def test_what_was_made_is_asked_for_where_it_is() -> None:
    s = Setting()
    response_id = await s.create()
    await s.show(response_id)
    assert s.asked == ["r1", "r1"]
    assert s.stored.model_of(response_id, ACME) == "m"


async def test_another_worker_asks_each_replica_once() -> None:
    s = Setting()
    response_id = await s.create()
    other = s.worker(Pins(b"secret"))
    assert other.model_of(response_id, ACME) == "n"
    await s.show(response_id, other)
    assert s.asked == ["r1", "s0", "r0", "r1"]
    await s.show(response_id, other)
    assert s.asked[4:] == ["r1"]


async def test_it_goes_on_where_the_one_before_is() -> None:
    s = Setting()
    first = await s.create()
    await s.create(previous_response_id=first)
    assert s.asked == ["r1", "r1"]


@pytest.mark.parametrize(
    ("elsewhere", "expected"), [(NotFound("No."), NotFound), (Unavailable("No."), Unavailable)]
)
async def test_what_nobody_holds(elsewhere: GatewayError, expected: type[GatewayError]) -> None:
    """It may be where nobody could be asked."""
    s = Setting(holder="gone", elsewhere=elsewhere)
    with pytest.raises(expected):
        await s.show(Pins(b"secret").new_id("a", "acme"))
    assert s.asked == ["s0", "r0", "r1", "r2"]


async def test_what_is_somebody_elses_does_not_exist() -> None:
    s = Setting()
    response_id = await s.create()
    with pytest.raises(NotFound):
        s.stored.model_of(response_id, BETA)
    with pytest.raises(NotFound):
        s.stored.prepare({"previous_response_id": response_id}, s.exchange, BETA)
    with pytest.raises(NotFound):
        s.stored.prepare({"previous_response_id": 5}, s.exchange, ACME)


async def test_what_goes_on_is_answered_by_the_model_that_began() -> None:
    s = Setting()
    response_id = await s.create()
    assert s.stored.made_by({"previous_response_id": response_id}) == "m"
    assert s.stored.made_by({"previous_response_id": "resp_x"}) is None
    assert s.stored.made_by({}) is None


def test_paths() -> None:
    assert parse_path("/v1/responses/resp_a1") == ("resp_a1", False)
    assert parse_path("/v1/responses/resp_a1/cancel") == ("resp_a1", True)
    for path in ("/v1/responses/", "/v1/responses/a/b", "/v1/responses/a%2f", "/v1/responses/é"):
        with pytest.raises(NotFound):
            parse_path(path)


@pytest.mark.parametrize(
    ("query", "cancel", "path", "stream"),
    [
        ("", False, b"/v1/responses/a", False),
        (
            "stream=true&starting_after=5",
            False,
            b"/v1/responses/a?stream=true&starting_after=5",
            True,
        ),
        ("stream=true", True, b"/v1/responses/a/cancel", False),
        ("stream=true&x=%0d%0a", False, b"/v1/responses/a", False),
    ],
)
def test_the_query_passes_as_far_as_it_is_known(
    query: str, cancel: bool, path: bytes, stream: bool
) -> None:
    exchange = FakeExchange(request(path="/v1/responses/a"))
    exchange.request.query = query
    delivery = delivery_of(exchange, "a", cancel=cancel, own_headers=())
    assert (delivery.path, delivery.stream) == (path, stream)
    assert delivery.method == (b"POST" if cancel else b"GET")
