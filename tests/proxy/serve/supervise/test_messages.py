from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.serve.supervise.messages import (
    LONGEST_FRAME,
    Commit,
    Committed,
    Drain,
    Drop,
    Frames,
    HandedOver,
    Listening,
    Message,
    Outcome,
    Ready,
    Refused,
    Rejected,
    Reload,
    Stage,
    Staged,
    TakeOver,
    Yield,
    encode,
)

ALL: list[Message] = [
    Stage(3, b"workers: 2\n# \xff\x00", "/etc/headrace.yaml"),
    Commit(3),
    Drop(3),
    Drain(delay=True, handed_over=True),
    Drain(at_once=True),
    Outcome(2, "refused", 1.5, "$.a: one\n$.b: two"),
    Outcome(3, "applied", 2.5, changed=("$.models", "/tls/cert.pem")),
    Ready(),
    Staged(3),
    Refused(3, "$.a: ü"),
    Committed(3),
    Reload("/etc/headrace.yaml"),
    Rejected("no"),
    TakeOver(),
    Listening("unix:/run/s", (7, 8)),
    HandedOver(bytes(range(256))),
    Yield(("127.0.0.1:8443", "[::1]:8443")),
]


@pytest.mark.parametrize("message", ALL, ids=lambda message: type(message).__name__)
def test_what_is_said_is_understood(message: Message) -> None:
    assert Frames().feed(encode(message)) == [message]


@given(st.lists(st.sampled_from(ALL)), st.lists(st.integers(1, 40)))
def test_however_it_is_cut(messages: list[Message], cuts: list[int]) -> None:
    data = b"".join(map(encode, messages))
    frames = Frames()
    found: list[Message] = []
    for cut in cuts:
        found += frames.feed(data[:cut])
        data = data[cut:]
    assert found + frames.feed(data) == messages


@pytest.mark.parametrize(
    "nonsense",
    [
        (LONGEST_FRAME + 1).to_bytes(4, "big"),
        b"GET / HTTP/1.1\r\n",
        b"\0\0\0\2{}",
        b'\0\0\0\x11{"type":"Sesame"}',
        b"\0\0\0\1\xff",
    ],
)
def test_nonsense_is_an_error(nonsense: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Frames().feed(nonsense)


def test_a_newer_gateway_may_say_more() -> None:
    body = b'{"type":"Yield","kept":[],"ledger":[1,2]}'
    assert Frames().feed(len(body).to_bytes(4, "big") + body) == [Yield(())]
