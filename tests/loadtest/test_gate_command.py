"""What the gate refuses. Its runs: tests/wire/test_gate.py."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.__main__ import main


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--base-url", "http://127.0.0.1:1"],
        ["--base-url", "http://h", "--candidate-url", "http://h", "--base", "main"],
    ],
)
def test_either_two_urls_or_a_revision(arguments: list[str], capsys: Any) -> None:
    assert main(["gate", *arguments]) == 2
    assert "--base-url and --candidate-url, or --base" in capsys.readouterr().err
