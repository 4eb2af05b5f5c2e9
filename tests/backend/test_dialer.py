from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest
from http2_wire import Http2Transport
from replica_wire import Transport

from backend import dialer
from backend.address import Address
from backend.config import ReplicaConfig, TimeoutsConfig, UpstreamConfig
from backend.dialer import Dialer
from backend.http1_protocol import Http1Protocol
from backend.http2_protocol import Http2Protocol
from core.errors import ConfigError, UpstreamProtocolError, UpstreamTimeout, UpstreamUnreachable
from core.section import Secret

OWNER: Any = None
CONTEXT = ssl.create_default_context()


class Dialled:
    """Instead of `dial`: a server that agreed on `alpn`, and what it does then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, alpn: str | None = None) -> None:
        self.alpn = alpn
        self.choice: Any = None
        self.transport: Any = Http2Transport()
        self.says_settings = True
        monkeypatch.setattr(dialer, "dial", self)

    async def __call__(
        self, address: Address, timeouts: TimeoutsConfig, choose: Any, context: Any, name: Any
    ) -> Any:
        self.choice = choose(self.alpn)
        if isinstance(self.choice, Http2Protocol):
            self.choice.connection_made(self.transport)
            if self.says_settings:
                self.choice.data_received(self.transport.server.outgoing())
        elif self.choice is not None:
            self.choice.connection_made(Transport())
        return self.choice


def make(protocol: Any, url: str = "https://gpu", **timeouts: float) -> Dialer:
    context = CONTEXT if url.startswith("https") else None
    upstream = UpstreamConfig(timeouts=TimeoutsConfig(**timeouts))
    return Dialer(ReplicaConfig(url=url, model="m", protocol=protocol), upstream, context)


@pytest.mark.parametrize(
    ("protocol", "url", "alpn", "expected"),
    [
        ("http1", "https://gpu", "http/1.1", Http1Protocol),
        ("http1", "https://gpu", None, Http1Protocol),
        ("http1", "http://gpu", None, Http1Protocol),
        ("auto", "https://gpu", "h2", Http2Protocol),
        ("auto", "https://gpu", "http/1.1", Http1Protocol),
        ("auto", "https://gpu", None, Http1Protocol),
        ("auto", "http://gpu", None, Http1Protocol),
        ("h2", "https://gpu", "h2", Http2Protocol),
        ("h2", "https://gpu", "http/1.1", type(None)),
        ("h2", "https://gpu", None, type(None)),
        ("h2", "http://gpu", None, Http2Protocol),
    ],
)
async def test_what_is_spoken(
    monkeypatch: pytest.MonkeyPatch, protocol: str, url: str, alpn: str | None, expected: type
) -> None:
    dialled = Dialled(monkeypatch, alpn)
    made = make(protocol, url)
    await made.open(OWNER, _Owner())
    assert type(dialled.choice) is expected
    assert made.may_multiplex == (protocol == "h2" or (protocol, url[:5]) == ("auto", "https"))


class _Owner:
    def changed(self, protocol: Http2Protocol) -> None: ...

    def lost(self, protocol: Http2Protocol) -> None: ...


async def test_a_connection_without_settings_is_not_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dialled = Dialled(monkeypatch)
    dialled.says_settings = False
    with pytest.raises(UpstreamTimeout) as caught:
        await make("h2", "http://gpu", connect_s=0.001).open(OWNER, _Owner())
    assert (caught.value.phase, caught.value.retryable) == ("connect", True)
    assert dialled.transport.aborted


async def test_cancelled_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    dialled = Dialled(monkeypatch)
    dialled.says_settings = False
    task = asyncio.ensure_future(make("h2", "http://gpu").open(OWNER, _Owner()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert dialled.transport.aborted


@pytest.mark.parametrize("how", ["garbage", "closed", "closed after the settings"])
async def test_faults_before_it_is_usable(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    dialled = Dialled(monkeypatch)
    dialled.says_settings = False
    task = asyncio.ensure_future(make("h2", "http://gpu").open(OWNER, _Owner()))
    await asyncio.sleep(0)
    if how == "garbage":
        dialled.choice.data_received(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    else:
        if how == "closed after the settings":
            dialled.choice.data_received(dialled.transport.server.outgoing())
        dialled.choice.connection_lost(None)
    expected = UpstreamProtocolError if how == "garbage" else UpstreamUnreachable
    with pytest.raises(expected):
        await task


def test_a_context_is_needed_for_https() -> None:
    with pytest.raises(ConfigError, match="gpu:443"):
        Dialer(ReplicaConfig(url="https://gpu", model="m"), UpstreamConfig(), None)


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "clé"])
def test_a_key_that_would_break_a_head(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("REPLICA_KEY", key)
    config = ReplicaConfig(url="http://gpu", model="m", api_key=Secret("env:REPLICA_KEY"))
    with pytest.raises(ConfigError) as caught:
        Dialer(config, UpstreamConfig(), None)
    assert key not in str(caught.value)
