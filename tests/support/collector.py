"""An OpenTelemetry collector: OTLP over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiohttp import web
from listening import Site
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """`spans` so far, and the `bytes` that they came in; `status` is answered, once `may_answer`
    is set."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.bytes = b""
        self.status = 200
        self.url = ""
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def __repr__(self) -> str:
        return f"<Collector {len(self.spans)} spans>"

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.bytes += body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans
        await self.may_answer.wait()
        return web.Response(status=self.status)


@contextlib.asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """One that runs for the time of the block."""
    collector = Collector()
    site = Site(web.post("/v1/traces", collector.take))
    await site.start()
    collector.url = f"http://127.0.0.1:{site.port}/v1/traces"
    try:
        yield collector
    finally:
        collector.may_answer.set()
        await site.stop()
