"""OpenAI's shape: `{"error": {...}}`, and streams that end with `data: [DONE]`. Pure."""

from __future__ import annotations

import json
from typing import Any

from core.errors import GatewayError
from proxy.scanner import EventScanner, error_in
from proxy.surfaces.shape import Shape


def error_object(error: GatewayError, request_id: str) -> dict[str, Any]:
    return {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.param,
            "code": error.reason,
            "request_id": request_id,
            **error.details,
        }
    }


def error_event(error: GatewayError, request_id: str) -> bytes:
    return b"data: %b\n\n" % one_line(error_object(error, request_id))


def one_line(value: dict[str, Any]) -> bytes:
    """JSON for a `data:` line: in ASCII, because some clients take U+2028 and the like for the end
    of a line."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


OPENAI = Shape(error_object, error_event, EventScanner, error_in)
