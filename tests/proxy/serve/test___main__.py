"""The command line: what it prints, and its exit status."""

from __future__ import annotations

import argparse
import io
import sys
from types import SimpleNamespace

import pytest

from core.errors import ConfigError
from proxy.serve.__main__ import main


def replaced(monkeypatch: pytest.MonkeyPatch, module: str, **functions: object) -> None:
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**functions))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("headrace ")


@pytest.mark.parametrize("arguments", [[], ["serve"], ["check"], ["fly"], ["demo", "--port", "x"]])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: headrace" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["serve", "check"])
def test_commands_get_the_file_and_give_the_status(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(
        monkeypatch,
        "proxy.serve.commands",
        **{command: lambda arguments: 7 if arguments.config == "a.yaml" else 1},
    )
    assert main([command, "-c", "a.yaml"]) == 7
    assert main([command, "--config", "a.yaml"]) == 7


def test_a_terminal_that_is_not_unicode_gets_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    def schema(_: argparse.Namespace) -> int:
        sys.stdout.write("1 ± 2\n")
        sys.stdout.flush()
        return 0

    said = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(said, encoding="ascii"))
    replaced(monkeypatch, "proxy.serve.commands", schema=schema)
    assert main(["schema"]) == 0
    assert said.getvalue() == b"1 \\xb1 2\n"


def test_the_demo_gets_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def demo(arguments: argparse.Namespace) -> int:
        seen.append((arguments.once, arguments.port))
        return 0

    replaced(monkeypatch, "proxy.serve.demo", main=demo)
    assert main(["demo", "--once", "--port", "8443"]) == 0
    assert main(["demo"]) == 0
    assert seen == [(True, 8443), (False, 0)]


def test_configuration_errors_are_lines_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(arguments: object) -> int:
        raise ConfigError("$.a: is wrong\n$.b: too")

    replaced(monkeypatch, "proxy.serve.commands", check=check)
    assert main(["check", "-c", "a.yaml"]) == 2
    assert capsys.readouterr().err == "headrace: $.a: is wrong\nheadrace: $.b: too\n"


def test_an_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(arguments: object) -> int:
        raise KeyboardInterrupt

    replaced(monkeypatch, "proxy.serve.commands", serve=serve)
    assert main(["serve", "-c", "a.yaml"]) == 130
