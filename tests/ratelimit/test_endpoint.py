from __future__ import annotations

import pytest

from ratelimit.endpoint import Endpoint, parse, parse_host


@pytest.mark.parametrize(
    ("url", "expected", "shown"),
    [
        ("redis://h", Endpoint("h", 6379, "", False, "", 0), "redis://h:6379"),
        ("redis://me@h:1/3", Endpoint("h", 1, "", False, "me", 3), "redis://h:1"),
        ("rediss://[::1]:2", Endpoint("::1", 2, "", True, "", 0), "rediss://[::1]:2"),
        ("unix:///run/a%20b?db=4", Endpoint("", 0, "/run/a b", False, "", 4), "unix:///run/a b"),
    ],
)
def test_urls(url: str, expected: Endpoint, shown: str) -> None:
    assert parse(url) == expected
    assert str(parse(url)) == shown


@pytest.mark.parametrize(
    "url",
    ["", "h:1", "redis://", "redis://h:x", "redis://h?db=1", "unix://", "redis://h/-1", "http://h"],
)
def test_what_is_no_url_of_a_redis(url: str) -> None:
    with pytest.raises(ValueError, match="`url`"):
        parse(url)


@pytest.mark.parametrize(("text", "expected"), [("a:1", ("a", 1)), ("[::1]:26379", ("::1", 26379))])
def test_hosts(text: str, expected: tuple[str, int]) -> None:
    assert parse_host(text) == expected


@pytest.mark.parametrize("text", ["", "a", "a:", ":1", "a:x", "a:1/0", "u@a:1", "a:99999", "[a:1"])
def test_what_is_no_host_and_port(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        parse_host(text)
