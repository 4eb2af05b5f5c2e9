"""A claim is a plain tuple, taken apart in the order of its fields."""

from __future__ import annotations

from core.claim import NOBODY, Claim


def test_nobody_has_no_say() -> None:
    assert Claim("", 0, 0, "") == NOBODY
