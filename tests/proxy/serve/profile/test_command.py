"""What the command refuses before it asks anybody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proxy.serve.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gateway:8443"], "expected a URL"),
        (["ftp://host/"], "expected a URL"),
        (["http://[::1"], "expected a URL"),
        (["http://host:70000"], "expected a URL"),
        (["http://host:x/"], "expected a URL"),
        (["http://a b/"], "expected a URL"),
        (["http://ä/"], "expected a URL"),
        (["http://"], "expected a URL"),
        (["http://host", "--token-env", "HEADRACE_NONE"], "HEADRACE_NONE is not set"),
        (["https://host", "--ca", "/none.pem"], "/none.pem"),
    ],
)
def test_what_cannot_be_is_said(arguments: list[str], words: str, capsys: Any) -> None:
    assert main(["profile", *arguments, "--model", "m"]) == 2
    assert words in capsys.readouterr().err


def test_certificates_that_are_none_are_said(tmp_path: Path, capsys: Any) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    assert main(["profile", "https://host", "--ca", str(empty), "--model", "m"]) == 2
    assert "empty.pem" in capsys.readouterr().err
