from __future__ import annotations

import orjson

from core.errors import BadRequest
from proxy.surfaces.openai import error_event, error_object

ERROR = BadRequest("No\u2028way.", param="n", details={"limit": {"rule": "r"}})


def test_an_error_is_one_object() -> None:
    assert error_object(ERROR, "id") == {
        "error": {
            "message": "No\u2028way.",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_request",
            "request_id": "id",
            "limit": {"rule": "r"},
        }
    }


def test_the_event_is_one_line_of_ascii() -> None:
    event = error_event(ERROR, "id")
    assert event.isascii()
    assert event.startswith(b"data: ")
    assert event.count(b"\n") == 2
    assert orjson.loads(event[6:]) == error_object(ERROR, "id")
