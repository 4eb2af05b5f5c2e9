from __future__ import annotations

from typing import get_args

import pytest

from backend.engines.dialect import EngineKind
from backend.engines.known import DIALECTS


def test_each_kind_that_can_be_named_is_known() -> None:
    assert set(DIALECTS) == set(get_args(EngineKind))


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("vllm", (200, 204), (301, 404, 429, 503)),
        ("sglang", (200,), (404, 503)),
        ("openai", (200, 404, 405, 429), (401, 403, 500, 503)),
    ],
)
def test_what_health_is(kind: EngineKind, good: tuple[int, ...], bad: tuple[int, ...]) -> None:
    healthy = DIALECTS[kind].healthy
    assert [healthy(status) for status in (*good, *bad)] == [True] * len(good) + [False] * len(bad)
