"""Certificates of ours and of clients, through the listener of a whole worker."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from authority import Authority, Pair
from http2_client import CHAT, Http2Client
from running import InProcess, base_config
from tls_client import Reply, get

from proxy.tls.config import TlsConfig

Document = dict[str, Any]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Of the servers' certificates."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Of the clients' certificates."""
    return Authority(tmp_path_factory.mktemp("clients"), name="clients")


def paths(pair: Pair) -> Document:
    return {"certificate": str(pair.certificate), "key": str(pair.key)}


def shown_in(pair: Pair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(pair.certificate).read_text())


def document(**tls: Any) -> Document:
    made = base_config(["http://127.0.0.1:9"])
    made["listen"]["tls"] = tls
    return made


class Gateway:
    """A worker in this loop, asked from threads."""

    def __init__(self, running: InProcess) -> None:
        self.running = running

    async def get(self, *arguments: Any, **options: Any) -> Reply:
        return await asyncio.to_thread(get, self.running.port, *arguments, **options)

    async def reload(self, **tls: Any) -> None:
        text = yaml.safe_dump({**document(**tls)}).encode()
        await self.running.worker.stage(text, "headrace.yaml")
        self.running.worker.commit()

    def metric(self, name: str, *labels: str) -> float:
        return self.running.metric(name, *labels)


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    async with contextlib.AsyncExitStack() as stack:

        async def made(**tls: Any) -> Gateway:
            return Gateway(await stack.enter_async_context(InProcess(document(**tls), tmp_path)))

        yield made


# --- certificates of ours


async def test_the_certificate_is_that_of_the_name(authority: Authority, run: Any) -> None:
    first, second = authority.issue("localhost"), authority.issue("b.example", "*.b.example")
    gateway = await run(certificates=[paths(first), paths(second)])
    client = authority.client_context()
    for sni, pair in [("localhost", first), ("b.example", second), ("x.b.example", second)]:
        reply = await gateway.get(client, sni)
        assert reply.status == 200
        assert reply.shown == shown_in(pair)
    client.check_hostname = False
    assert (await gateway.get(client, None)).shown == shown_in(first)
    astray = await gateway.get(client, "localhost", host="b.example")
    assert (astray.status, astray.code) == (421, "misdirected_request")
    assert (await gateway.get(client, "x.b.example", host="b.example:443")).status == 200


async def test_over_http_2_each_stream_is_judged_by_itself(authority: Authority, run: Any) -> None:
    first, second = authority.issue("localhost"), authority.issue("b.example")
    gateway = await run(certificates=[paths(first), paths(second)])
    client = await Http2Client.open(gateway.running.port, authority.client_context())
    statuses = []
    for host in (b"localhost", b"b.example", b"localhost:443", b"other.example"):
        asked = {b":method": b"GET", b":authority": host, b":path": b"/healthz"}
        stream = client.ask(b"", [(name, asked.get(name, value)) for name, value in CHAT[:4]])
        statuses.append((await client.answer(stream)).status)
    client.close()
    assert statuses == [200, 421, 200, 200]


async def test_no_handshake_fails_during_100_reloads(authority: Authority, run: Any) -> None:
    """And the first one after a reload sees the new certificate. The worker's part of a reload
    that is TLS's; the rest would only make it slow."""
    pairs = [authority.issue("localhost"), authority.issue("localhost", kind="rsa")]
    gateway: Gateway = await run(**paths(pairs[0]))
    tls = gateway.running.prepared.tls
    assert tls is not None
    over = threading.Event()
    counts = {"resumed": 0, "full": 0}

    def keep_asking() -> set[bytes]:
        client = authority.client_context()
        session = None
        seen = set()
        while not over.is_set():
            reply = get(gateway.running.port, client, session=session)
            assert reply.status == 200
            seen.add(reply.shown)
            counts["resumed" if reply.resumed else "full"] += 1
            # Every other connection is a full handshake.
            session = reply.session if session is None else None
        return seen

    fresh = authority.client_context()
    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(keep_asking) for _ in range(4)]
        try:
            for number in range(1, 101):
                pair = pairs[number % 2]
                tls.commit(tls.stage(TlsConfig(certificates=(pair.config(),))))
                assert (await gateway.get(fresh)).shown == shown_in(pair)
        finally:
            over.set()
        seen = [await asyncio.wrap_future(future) for future in asking]
    assert set.union(*seen) == set(map(shown_in, pairs))
    assert counts["full"] > 20
    assert counts["resumed"] > 20
    assert gateway.metric("headrace_tls_alerts_total", "internal_error") == 0


async def test_a_bad_certificate_is_refused_whole(
    authority: Authority, run: Any, tmp_path: Path
) -> None:
    pair, bad = authority.issue("localhost"), authority.issue("localhost", since=-9, days=-1)
    gateway = await run(**paths(pair))
    with pytest.raises(Exception, match=r"\$\.listen\.tls: the certificate .* expired on"):
        await gateway.reload(**paths(bad))
    assert (await gateway.get(authority.client_context())).shown == shown_in(pair)


# --- certificates of clients


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.issue("localhost", "open.example", "closed.example")


def client_of(authority: Authority, shows: Pair | None = None) -> ssl.SSLContext:
    context = authority.client_context()
    return context if shows is None else shows.present(context)


async def test_a_valid_certificate_or_403(
    authority: Authority, clients: Authority, pair: Pair, run: Any
) -> None:
    gateway = await run(**paths(pair), client_certificates={"ca": str(clients.path)})
    good = client_of(authority, clients.issue("c"))
    first = await gateway.get(good)
    assert first.status == 200
    again = await gateway.get(good, session=first.session)
    assert (again.status, again.resumed) == (200, True)
    bare = client_of(authority)
    none = await gateway.get(bare)
    assert (none.status, none.code) == (403, "client_certificate_required")
    again = await gateway.get(bare, session=none.session)
    assert (again.status, again.resumed) == (403, True)


@pytest.mark.parametrize(
    ("fault", "alert"),
    [("other authority", "UNKNOWN_CA"), ("expired", "CERTIFICATE_EXPIRED"), ("early", "BAD_CERT")],
)
async def test_a_certificate_that_does_not_hold_ends_the_handshake(
    authority: Authority, clients: Authority, run: Any, fault: str, alert: str
) -> None:
    """Even where none is needed."""
    pair = authority.issue("localhost")
    gateway = await run(
        **paths(pair), client_certificates={"ca": str(clients.path), "mode": "optional"}
    )
    shows = {
        "other authority": lambda: authority.issue("c"),
        "expired": lambda: clients.issue("c", since=-9, days=-1),
        "early": lambda: clients.issue("c", since=1),
    }[fault]()
    with pytest.raises(ssl.SSLError, match=f"ALERT_{alert}"):
        await gateway.get(client_of(authority, shows))
    assert gateway.metric("headrace_tls_alerts_total", "certificate_verify_failed") == 1


async def test_a_removed_authority_is_not_trusted_any_more(
    authority: Authority, clients: Authority, pair: Pair, run: Any, tmp_path: Path
) -> None:
    """Not by a ticket, not by an open connection, not by a new one."""
    both = tmp_path / "both.pem"
    both.write_bytes(Path(authority.path).read_bytes() + Path(clients.path).read_bytes())
    gateway: Gateway = await run(**paths(pair), client_certificates={"ca": str(both)})
    good = client_of(authority, clients.issue("c"))
    first = await gateway.get(good)
    assert first.status == 200
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", gateway.running.port, ssl=good, server_hostname="localhost"
    )
    ask = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    writer.write(ask)
    assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
    await gateway.reload(**paths(pair), client_certificates={"ca": str(authority.path)})
    writer.write(ask)
    assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 403 ")
    writer.close()
    for session in (first.session, None):
        with pytest.raises(ssl.SSLError, match="ALERT_UNKNOWN_CA"):
            await gateway.get(good, session=session)


async def test_tickets_of_an_open_listener_are_worth_nothing_where_certificates_are_asked_for(
    authority: Authority, clients: Authority, pair: Pair, run: Any
) -> None:
    gateway = await run(**paths(pair))
    client = client_of(authority, clients.issue("c"))
    asked = {"ca": str(clients.path)}
    resumed = []
    session = None
    for settings in ({}, {"client_certificates": asked}, {}, {"client_certificates": asked}):
        await gateway.reload(**paths(pair), **settings)
        reply = await gateway.get(client, session=session)
        assert reply.status == 200
        resumed.append(reply.resumed)
        session = reply.session
        resumed.append((await gateway.get(client, session=session)).resumed)
    assert resumed == [False, True] * 4


async def test_only_some_hosts_need_a_certificate(
    authority: Authority, clients: Authority, pair: Pair, run: Any
) -> None:
    gateway = await run(
        **paths(pair),
        client_certificates={"ca": str(clients.path), "names": ["closed.example"]},
    )
    bare, good = client_of(authority), client_of(authority, clients.issue("c"))
    opened = await gateway.get(bare, "open.example")
    assert opened.status == 200
    assert (await gateway.get(good, "closed.example")).status == 200
    for client, sni, host, session, status in [
        (bare, "closed.example", None, None, 403),
        (bare, "closed.example", None, opened.session, 403),
        (bare, "open.example", "closed.example", None, 421),
        (bare, "open.example", "closed.example", opened.session, 421),
        (good, "open.example", "closed.example", None, 421),
        (good, "closed.example", "open.example", None, 421),
        (good, "closed.example", "closed.example:8443", None, 200),
    ]:
        reply = await gateway.get(client, sni, host=host, session=session)
        assert reply.status == status, (sni, host)
