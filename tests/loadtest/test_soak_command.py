"""What a soak refuses. One run: tests/wire/test_loadtest.py."""

from __future__ import annotations

import os
from typing import Any

import pytest

from loadtest.__main__ import main

URL = ["--url", "http://127.0.0.1:1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["soak", *URL], "give the server's --pid"),
        (["soak", *URL, "--pid", str(os.getpid()), "--speed", "0"], "--hours and --speed"),
        (["long", *URL, "--pid", str(os.getpid())], "of kind closed"),
        (["soak", *URL, "--pid", "4194304999"], "no such process"),
    ],
)
def test_what_is_refused(arguments: list[str], said: str, capsys: Any) -> None:
    assert main(["soak", *arguments]) == 2
    assert said in capsys.readouterr().err
