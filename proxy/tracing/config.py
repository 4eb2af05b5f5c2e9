"""The section `tracing`: where traces of exchanges go, and of how many."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from core.section import Secret, Section


class TracingConfig(Section):
    """`endpoint`: an OpenTelemetry collector, OTLP over HTTP (`http://collector:4318/v1/traces`).
    `sample_ratio` of the exchanges are traced, whatever clients say of theirs. `headers` go to the
    collector, each a reference to a secret."""

    endpoint: Annotated[str, Meta(pattern=r"^https?://[^\s/]+(/\S*)?$")]
    sample_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.01
    service_name: Annotated[str, Meta(min_length=1, max_length=128)] = "headrace"
    headers: dict[str, Secret] = msgspec.field(default_factory=dict)
