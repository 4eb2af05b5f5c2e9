"""What the command prints, and what it cannot ask."""

from __future__ import annotations

import pytest

from proxy.serve.__main__ import main
from proxy.serve.explain_command import render

TARGET = {
    "replica": "r0",
    "obstacle": "",
    "room": True,
    "cached_tokens": 64,
    "score": {
        "total": 0.0123,
        "queue": 0.01,
        "own": 0.002,
        "others": 0.003,
        "room": 0.0,
        "slow_start": 0.0,
        "session": 0.0,
    },
    "in_flight": 1,
    "pending_tokens": 10,
    "live_tokens": 20,
    "foreign_in_flight": 2.0,
    "foreign_tokens": 30.0,
    "kv_tokens": 100,
    "prefill_rate": 1000.0,
}
ANSWER = {
    "model": "m",
    "prompt_tokens": 100,
    "exact": False,
    "blocks": 1,
    "choice": "r0",
    "reason": "chosen",
    "waiting": 0,
    "targets": [TARGET, TARGET | {"replica": "r1", "obstacle": "full", "score": None}],
}


def test_the_table() -> None:
    head, headings, first, second, last = render(ANSWER).splitlines()
    assert head == "m: about 100 prompt tokens, 1 block"
    assert headings.split()[:2] == ["replica", "cached"]
    terms = ["10.00", "2.00", "3.00", "0.00", "0.00", "0.00", "12.30"]
    assert first.split() == ["r0", "64", "3", "40", *terms, "<-", "chosen"]
    assert second.split() == ["r1", "64", "3", "40", *["-"] * 7, "full"]
    assert last.startswith("Milliseconds.")


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("waits", "It would wait: every replica has enough to do."),
        ("other", "It would be refused: other."),
    ],
)
def test_it_says_what_would_happen_instead(reason: str, sentence: str) -> None:
    lines = render(ANSWER | {"choice": None, "reason": reason, "waiting": 2}).splitlines()
    assert lines[-3:-1] == [sentence, "2 requests already waiting."]


@pytest.mark.parametrize(
    ("where", "status", "word"),
    [
        ([], 2, "--url"),
        (["--url", "nowhere"], 2, "--url"),
        (["--url", "127.0.0.1:1"], 1, "no gateway answers"),
    ],
)
def test_whom_to_ask(
    capsys: pytest.CaptureFixture[str], where: list[str], status: int, word: str
) -> None:
    assert main(["route", "explain", "--model", "m", "--prompt", "x", *where]) == status
    assert word in capsys.readouterr().err
