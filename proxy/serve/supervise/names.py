"""What the supervisor's processes are called."""

from __future__ import annotations

CORE = -1
"""The index of the core; those of workers count from 0."""


def name_of(index: int) -> str:
    return "core" if index == CORE else f"worker {index}"
