"""Which engines there are."""

from __future__ import annotations

from typing import Literal

from core.http2.engine import Engine, EngineOptions, Http2Handler
from core.http2.h2_engine import H2Engine
from core.http2.nghttp2_engine import Nghttp2Engine

EngineName = Literal["nghttp2", "h2"]


def make_engine(name: EngineName, handler: Http2Handler, options: EngineOptions) -> Engine:
    if name == "h2":
        return H2Engine(handler, options)
    return Nghttp2Engine(handler, options)
