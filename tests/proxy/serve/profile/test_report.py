"""The profiler's waterfall and verdicts."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.budgets.config import BudgetsConfig
from proxy.serve.profile.report import Sample, parse_server_timing, render


def sample(**changes: Any) -> Sample:
    usual: dict[str, Any] = {
        "first_byte": 0.05,
        "first_token": 0.06,
        "first_tokens": 0.16,
        "gaps": [0.01] * 9,
        "total": 0.2,
    }
    return Sample(**{**usual, **changes})


def text(*samples: Sample) -> str:
    return "\n".join(render(samples, BudgetsConfig()))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("", {}),
        ("auth;dur=1.5, route;dur=2", {"auth": 0.0015, "route": 0.002}),
        ('cache;desc="Cache Read";dur=23.2', {"cache": 0.0232}),
        ("miss, db;DUR=1;desc=x", {"db": 0.001}),
        ("odd;dur=soon, fine;dur=1", {"fine": 0.001}),
    ],
)
def test_server_timing_is_read(value: str, found: dict[str, float]) -> None:
    assert parse_server_timing(value) == pytest.approx(found)


def test_each_stage_has_its_median_and_spread() -> None:
    shown = text(
        sample(resolve=0.001, connect=0.002, tls=0.009),
        sample(),
        sample(resolve=0.001, connect=0.004, tls=0.003, resumed=True, first_byte=0.07),
    )
    lines = {line[:18].strip(): line.split() for line in shown.splitlines()}
    assert lines["connect"][1:6] == ["3.00", "ms", "2.00", "to", "4.00"]
    assert lines["TLS, full"][2] == "9.00"
    assert lines["TLS, resumed"][2] == "3.00"
    assert lines["first byte"][2] == "50.00"
    assert lines["per token"][2] == "10.00"
    assert "as the server says" not in shown


def test_what_is_over_is_named_for_each_tier() -> None:
    server = {"auth": 0.007, "tokenize": 0.002, "first_token": 0.12, "relay": 5.0}
    shown = text(*[sample(server=server, first_token=0.14, first_tokens=0.3)] * 2)
    verdicts = {line.split()[0]: line for line in shown.splitlines()[-3:]}
    assert "OVER: gateway 7.0 of 5 ms, first_token 120.0 of 90 ms" in verdicts["voice"]
    assert verdicts["chat"].endswith("PASS")
    assert verdicts["rag"].endswith("PASS")
    assert "auth" in shown
