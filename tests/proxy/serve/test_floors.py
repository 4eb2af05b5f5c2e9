"""The lowest versions of the libraries that face the network."""

from __future__ import annotations

import pytest
from aiohttp import http_parser

from proxy.serve.floors import FLOORS, too_old, unsafe_libraries

LOWEST = {name: lowest for name, (lowest, _) in FLOORS.items()}


def test_what_is_installed_here_is_safe() -> None:
    assert unsafe_libraries() == []


def test_the_floors_themselves_are_safe() -> None:
    assert too_old(LOWEST) == []


@pytest.mark.parametrize(
    ("version", "old"),
    [
        ("3.14.4", True),
        ("3.9.5", True),
        ("3.14.4.post1", True),
        ("3.14.5", False),
        ("3.14.5.0", False),
        ("3.14.10", False),
        ("4.0.0a1", False),
        ("nonsense", True),
        (None, True),
    ],
)
def test_versions_are_compared_as_numbers(version: str | None, old: bool) -> None:
    faults = too_old({**LOWEST, "aiohttp": version})
    assert len(faults) == (1 if old else 0)
    assert all("aiohttp" in fault for fault in faults)


def test_the_parser_in_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_parser, "HttpResponseParser", http_parser.HttpResponseParserPy)
    assert unsafe_libraries() == [
        "aiohttp runs without its C parser; install a compiled wheel of it"
    ]
