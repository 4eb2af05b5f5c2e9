from __future__ import annotations

import pytest

from proxy.listen.networks import UNIX, Networks


def test_who_is_inside() -> None:
    networks = Networks(["10.0.0.0/8", "192.0.2.7", "2001:db8::/32", "unix"])
    for inside in ("10.1.2.3", "192.0.2.7", "2001:db8::5", "::ffff:10.1.2.3", UNIX):
        assert inside in networks
    for outside in ("11.0.0.1", "192.0.2.8", "2001:db9::", "::1", "", "ten", "10.0.0.0/8"):
        assert outside not in networks


def test_nobody_is_inside_of_nothing() -> None:
    assert not Networks()
    assert "10.0.0.1" not in Networks()
    assert UNIX not in Networks(["10.0.0.0/8"])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("10.0.0.1/8", r"do you mean 10\.0\.0\.0/8\?"),
        ("10.0.0", "expected a network like"),
        ("localhost", 'got "localhost"'),
        ("", "expected a network"),
    ],
)
def test_what_is_no_network(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Networks([text])
