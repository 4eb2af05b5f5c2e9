from __future__ import annotations

import pytest

from routing.weight import exceeds


@pytest.mark.parametrize(
    ("value", "heavy"),
    [
        (None, False),
        ("x" * 1000, False),
        ("x" * 1001, True),
        (["x" * 490, "y" * 490], True),
        (["x" * 400, "y" * 400], False),
        ([0] * 62, False),
        ([0] * 63, True),
        ([{"role": "user", "content": ""}] * 6, False),
        ([{"role": "user", "content": ""}] * 7, True),
        ({"deep": {"deep": {"deep": "x" * 900}}}, True),
    ],
)
def test_weighs_text_and_structure(value: object, heavy: bool) -> None:
    assert exceeds([value], 1000) is heavy


def test_stops_early_on_what_is_very_large() -> None:
    # Would take minutes if the shared lists were walked to their ends.
    value: object = "x"
    for _ in range(40):
        value = [value, value]
    assert exceeds([value], 64 * 1024)
