"""Data of third parties in `../shared`, beside the project; a test skips where it is absent."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared"


def beside(name: str) -> Path:
    """That file or folder; skips the test where it is not at hand."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{name} is not at hand")
    return path


def all_beside(folder: str, *patterns: str) -> list[Path]:
    """The files of that folder that match; skips the test where there is none."""
    found = sorted(path for pattern in patterns for path in (SHARED / folder).glob(pattern))
    if not found:
        pytest.skip(f"{folder}/{patterns[0]} is not at hand")
    return found
