"""One document of the live page's feed, as a terminal shows it."""

from __future__ import annotations

from typing import Any

from proxy.serve.top import render

NONE = {"p50": None, "p95": None, "p99": None}


def view(**changes: Any) -> dict[str, Any]:
    traffic = {
        "requests_per_s": 12.5,
        "in_flight": 3,
        "failures_per_s": 0.0,
        "output_tokens_per_s": 480.0,
        "cached_share": 0.5,
        "ttft_ms": {"p50": 20.0, "p95": 30.0, "p99": 40.0},
        "itl_ms": NONE,
    }
    names = ("replicas", "tiers", "slower", "limits", "failures", "recent", "reasons")
    empty: dict[str, Any] = {name: [] for name in names}
    whole = {"ready": True, "workers": 2, "generation": 1, "traffic": traffic}
    return {**empty, **whole, **changes}


def test_an_idle_gateway_has_three_lines() -> None:
    lines = list(render(view()))
    assert len(lines) == 3
    assert "ready  workers 2" in lines[0]
    assert "50% of prompts cached" in lines[1]
    assert lines[2] == "TTFT p50 20.0 p99 40.0 ms  ITL p50 - p99 - ms"


def test_trouble_is_named() -> None:
    replica = {"id": "a", "in_flight": 1, "pending_tokens": 2, "live_tokens": 3, "cache": "exact"}
    tier = {"tier": "voice", "part": "gateway", "allowed_ms": 5, **NONE, "late": 0.2}
    text = "\n".join(
        render(
            view(
                ready=False,
                reasons=["no replica of demo"],
                replicas=[{**replica, "healthy_in": 0}, {**replica, "id": "b", "healthy_in": 1}],
                tiers=[tier, {**tier, "late": 0.01}, {**tier, "allowed_ms": None}],
            )
        )
    )
    assert "NOT READY: no replica of demo" in text
    assert [line.split()[1] for line in text.splitlines() if line[:2] in ("a ", "b ")] == [
        "AWAY",
        "partly",
    ]
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("voice")] == [
        "OVER",
        "PASS",
        "20%",
    ]


def test_names_from_clients_cannot_steer_the_terminal() -> None:
    record = {"request_id": "r" * 32, "model": "\x1b[2J\x07x", "status": 404, "reason": "no_model"}
    text = "\n".join(render(view(recent=[record])))
    assert "\x1b" not in text
    assert "?[2J?x" in text


def test_a_phase_that_became_slow_is_named() -> None:
    slower = {"phase": "reserve", "usual_ms": 0.1, "now_ms": 20.34}
    assert "slower than before: reserve, 0.1 -> 20.3 ms" in list(render(view(slower=[slower])))
