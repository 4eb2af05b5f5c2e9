"""Usage in the bytes of an answer."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from proxy.surfaces.usage import usage_in

USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}


def dumps(text: str = "hello", **fields: Any) -> bytes:
    return orjson.dumps({"choices": [{"message": {"content": text}}], **fields})


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (dumps(usage=USAGE), USAGE),
        (orjson.dumps({"usage": USAGE, "choices": []}, option=orjson.OPT_INDENT_2), USAGE),
        (dumps(usage=None), None),
        (dumps(usage=5), None),
        (dumps(text='"usage": {"completion_tokens": 9}'), None),
        (dumps(text='"usage": {"completion_tokens": 9}', usage=USAGE), USAGE),
        (dumps(usage={}), {}),
        (b'"usage": {"completion_tokens": }', None),
        (b'"usage": {', None),
        (b"", None),
    ],
)
def test_usage_in(body: bytes, usage: object) -> None:
    assert usage_in(body) == usage
