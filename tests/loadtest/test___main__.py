"""The command line as a whole: terminals and pipes that cannot take what is said."""

from __future__ import annotations

import io
import sys

import pytest

from loadtest import compare_command
from loadtest.__main__ import main


def test_a_terminal_that_is_not_unicode_gets_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(said, encoding="ascii"))
    monkeypatch.setattr(compare_command, "run", lambda _: print("1 ± 2", flush=True) or 0)
    assert main(["compare", "a", "b"]) == 0
    assert said.getvalue() == b"1 \\xb1 2\n"


def test_a_reader_that_left_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: object) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(compare_command, "run", run)
    assert main(["compare", "a", "b"]) == 1
