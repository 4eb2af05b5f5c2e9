from __future__ import annotations

import pytest

from core.section import Secret
from ratelimit.config import RedisConfig
from ratelimit.endpoint import parse
from ratelimit.redis_command import SCRIPT
from ratelimit.redis_link import greeting
from ratelimit.redis_reply import command

LOAD = command(b"SCRIPT", b"LOAD", SCRIPT)


@pytest.mark.parametrize(
    ("url", "password", "commands"),
    [
        ("redis://h", False, []),
        ("redis://h/3", False, [command(b"SELECT", b"3")]),
        ("redis://h", True, [command(b"AUTH", b"hunter2")]),
        (
            "redis://me@h/1",
            True,
            [command(b"AUTH", b"me", b"hunter2"), command(b"SELECT", b"1")],
        ),
    ],
)
def test_a_connection_begins_with_who_we_are_and_with_the_script(
    url: str, password: bool, commands: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", "hunter2")
    secret = Secret("env:PASSWORD") if password else None
    config = RedisConfig(url=url, password=secret)
    assert greeting(config, parse(url)) == [*commands, LOAD]
