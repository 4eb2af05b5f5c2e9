from __future__ import annotations

import pytest

from ratelimit.redis_reply import command, kind_of, place_in


def test_commands_are_bulk_strings() -> None:
    assert command(b"SELECT", b"2") == b"*2\r\n$6\r\nSELECT\r\n$1\r\n2\r\n"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("NOSCRIPT No matching script. Please use EVAL.", "noscript"),
        ("LOADING Valkey is loading the dataset in memory", "loading"),
        ("READONLY You can't write against a read only replica.", "readonly"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "oom"),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", "wrong_type"),
        ("MOVED 3999 127.0.0.1:6381", "moved"),
        ("ASK 3999 127.0.0.1:6381", "ask"),
        ("CLUSTERDOWN The cluster is down", "cluster_down"),
        ("ERR max number of clients reached", "max_clients"),
        ("NOAUTH Authentication required.", "auth"),
        ("ERR invalid password", "auth"),
        ("ERR Error running script: READONLY you can not write", "readonly"),
        ("ERR something new", "other"),
    ],
)
def test_errors_are_words_of_a_bounded_set(error: str, kind: str) -> None:
    assert kind_of(error) == kind


@pytest.mark.parametrize(
    ("error", "place"),
    [
        ("MOVED 3999 127.0.0.1:6381", (3999, "127.0.0.1", 6381)),
        ("ASK 0 ::1:6381", (0, "::1", 6381)),
        ("MOVED 1 :7000", (1, "", 7000)),
        ("MOVED x y", None),
        ("CLUSTERDOWN The cluster is down", None),
    ],
)
def test_where_the_keys_are_instead(error: str, place: object) -> None:
    assert place_in(error) == place
