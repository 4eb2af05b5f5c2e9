"""What a replay refuses; and one against a fake replica is in tests/wire/test_loadtest.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadtest.__main__ import main

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n0,5,1\n1,5,1\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rate", "1", "--speed", "1"], "not both"),
        (["--speed", "0"], "above 0"),
        (["--rate", "-1"], "above 0"),
    ],
)
def test_what_has_no_meaning_is_said(
    tmp_path: Path, capsys: Any, options: list[str], words: str
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    assert main(["replay", str(path), "--url", "http://127.0.0.1:1", *options]) == 2
    assert words in capsys.readouterr().err


def test_a_trace_that_is_not_there_is_named(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "none.csv"
    assert main(["replay", str(path), "--url", "http://127.0.0.1:1"]) == 2
    assert "none.csv" in capsys.readouterr().err
