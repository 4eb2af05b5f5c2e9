"""A pipeline with stand-ins for everything around it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import orjson
from fakes import (
    FakeAuthenticator,
    FakeExchange,
    FakeHealth,
    FakeLimiter,
    FakePool,
    FakePrompter,
    FakeRouter,
    Timeouts,
    request,
)

from backend.retries import RetryBudget
from core.metrics import Metrics
from core.principal import Principal
from proxy.access_log import AccessRecord
from proxy.catalog import Catalog
from proxy.config import ListenLimits
from proxy.cors import Cors
from proxy.dispatch import Dispatcher
from proxy.flow import Watchdog
from proxy.observe import Observer
from proxy.overload.admission import Admission
from proxy.pipeline import Pipeline
from proxy.services import Services
from proxy.variants import make_variants
from ratelimit.estimate import Estimates
from routing.config import ModelConfig
from routing.salts import CacheSalts

CHAT = {"model": "alias", "messages": [{"role": "user", "content": "hi"}], "stream": True}


MODEL = ModelConfig(name="m", aliases=("alias",), max_model_len=100)


class Log:
    def __init__(self) -> None:
        self.records: list[AccessRecord] = []

    def write(self, record: AccessRecord) -> None:
        self.records.append(record)


class Setting:
    def __init__(
        self,
        *scripts: Any,
        principal: Principal | Exception | None = None,
        models: Sequence[ModelConfig] = (MODEL,),
        **services: Any,
    ) -> None:
        self.metrics = Metrics.private()
        self.log = Log()
        self.limiter = FakeLimiter()
        self.prompter = FakePrompter()
        self.pool = FakePool(*scripts)
        self.router = FakeRouter("r0", "r1")
        self.admission = Admission(ListenLimits(), self.metrics)
        self.pipeline = Pipeline(
            Services(
                authenticator=FakeAuthenticator(principal or Principal("acme", "bob", "gold")),
                catalog=Catalog(models, created=1),
                prompter=self.prompter,
                limiter=self.limiter,
                dispatcher=Dispatcher(
                    router=self.router,
                    pool=self.pool,
                    health=FakeHealth(),
                    budget=RetryBudget(),
                    max_tries=3,
                    timeouts=Timeouts(),
                    watchdog=Watchdog(),
                    estimates=Estimates(512, 4096),
                    clock=time.monotonic,
                    metrics=self.metrics,
                ),
                observer=Observer(log=self.log, metrics=self.metrics, clock=time.monotonic),  # type: ignore[arg-type]
                admission=self.admission,
                cors=Cors(["https://app.example"]),
                health_path="/healthz",
                salt_of=CacheSalts("secret").of,
                clock=time.monotonic,
                variants=make_variants(models),
                **services,
            )
        )

    async def handle(
        self, document: Any = CHAT, *, path: str = "/v1/chat/completions", method: str = "POST"
    ) -> FakeExchange:
        body = document if isinstance(document, bytes) else orjson.dumps(document)
        exchange = FakeExchange(request(method, path, body=body))
        await self.pipeline.handle(exchange)
        assert self.router.held == 0
        assert self.metrics.value("headrace_exchanges_in_flight") == 0
        assert self.pipeline.in_flight == 0
        assert len(self.log.records) == 1
        return exchange

    @property
    def record(self) -> AccessRecord:
        return self.log.records[0]


def error_of(exchange: FakeExchange) -> dict[str, Any]:
    assert exchange.ended == "finished"
    assert dict(exchange.headers)[b"content-type"] == b"application/json"
    error: dict[str, Any] = orjson.loads(exchange.body)["error"]
    assert error["request_id"] == exchange.id
    return error
