"""Which events hold tokens. The client itself: tests/wire/test_profile.py."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.serve.profile.client import _has_content


@pytest.mark.parametrize(
    ("event", "holds"),
    [
        ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, False),
        ({"choices": [{"delta": {"content": "x"}}]}, True),
        ({"choices": [{"delta": {"reasoning_content": "x"}}]}, True),
        ({"choices": [], "usage": {}}, False),
        ({"choices": [{"delta": {}, "finish_reason": "stop"}]}, False),
        ({}, False),
    ],
)
def test_the_role_and_the_usage_are_no_tokens(event: dict[str, Any], holds: bool) -> None:
    assert _has_content(event) is holds
