"""The lowest versions that are safe at an edge, and why. Checked at every start.

One line for each advisory that is the reason; a version that pip resolved may still be too old
where the environment was made by hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import metadata

from aiohttp import http_parser

FLOORS: Mapping[str, tuple[str, str]] = {
    "aiohttp": ("3.14.5", "request smuggling and denial of service (CVE-2026-54277, -54273)"),
    "cryptography": ("50", "current OpenSSL"),
    "h2": ("4.4.1", "forwarded several Hosts, and line ends in values (CVE-2026-71554)"),
    "hpack": ("4.2", "quadratic time for crafted integers (CVE-2026-59980)"),
    "httptools": ("0.9", "current llhttp"),
    "pyjwt": ("2.15.1", "accepted forged tokens (CVE-2026-48523, CVE-2026-102268, -101918)"),
}


def unsafe_libraries() -> list[str]:
    """One sentence for each installed library that is too old, missing, or not compiled."""
    faults = too_old({name: _installed(name) for name in FLOORS})
    if http_parser.HttpResponseParser is http_parser.HttpResponseParserPy:
        faults.append("aiohttp runs without its C parser; install a compiled wheel of it")
    return faults


def too_old(installed: Mapping[str, str | None]) -> list[str]:
    """The faults of these versions (None: not installed)."""
    faults = []
    for name, (lowest, why) in FLOORS.items():
        version = installed.get(name)
        if version is None:
            faults.append(f"the library {name} is not installed")
        elif _numbers(version) < _numbers(lowest):
            faults.append(f"{name} {version} is older than {lowest}, which is needed: {why}")
    return faults


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """The release segment of a version (PEP 440), without trailing zeros."""
    match = re.match(r"(?:\d+!)?(\d+(?:\.\d+)*)", version)
    numbers = [int(part) for part in match.group(1).split(".")] if match else [0]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
