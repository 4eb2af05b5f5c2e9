"""Key sets fetched over TLS on loopback, from a server with every fault it could have."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import multiprocessing
import os
import signal
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from listening import Site

from auth.board import Board
from auth.config import AuthConfig, IssuerConfig, JwksConfig
from auth.verifier import TokenVerifier
from core.errors import Unauthenticated, Unavailable
from core.metrics import Metrics
from core.section import FilePath

ISSUER = "https://id.example"
# Python 3.12 and later warn about a fork while a thread of an earlier test lives.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SigningKey:
    def __init__(self, kid: str) -> None:
        self.kid = kid
        self.private = ec.generate_private_key(ec.SECP256R1())
        public = jwt.algorithms.ECAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        self.jwk = {"kty": "EC", "crv": "P-256", "x": public["x"], "y": public["y"], "kid": kid}

    def header(self, kid: str | None = None, issuer: str = ISSUER) -> bytes:
        """A value of `Authorization`; `kid` names another key than the one that signed."""
        claims = {"iss": issuer, "aud": "headrace", "sub": "alice", "exp": time.time() + 600}
        token = jwt.encode(claims, self.private, "ES256", headers={"kid": kid or self.kid})
        return b"Bearer " + token.encode()


class Host:
    """The JWKS host: answers with `keys`, or as `answer` says. `count` requests so far."""

    def __init__(self, folder: Path) -> None:
        self.keys: list[dict[str, Any]] = []
        self.answer: Answer | None = None
        self.count = 0
        self.elsewhere = 0
        self.url = ""
        self.ca, leaf = _certificates(folder)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(leaf)
        self._site = Site(
            web.get("/jwks.json", self._serve),
            web.get("/elsewhere", self._serve_elsewhere),
            web.get("/.well-known/openid-configuration", self._serve_metadata),
            tls=tls,
        )
        self.stop = self._site.stop

    async def start(self) -> None:
        await self._site.start()
        self.url = f"https://127.0.0.1:{self._site.port}/jwks.json"

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.count += 1
        if self.answer is not None:
            return await self.answer(request)
        return web.json_response({"keys": self.keys})

    @property
    def issuer(self) -> str:
        return self.url.removesuffix("/jwks.json")

    async def _serve_metadata(self, _: web.Request) -> web.Response:
        return web.json_response({"issuer": self.issuer, "jwks_uri": self.url})

    async def _serve_elsewhere(self, _: web.Request) -> web.Response:
        self.elsewhere += 1
        return web.json_response({"keys": self.keys})


def _certificates(folder: Path) -> tuple[Path, Path]:
    """A file with a self-signed certificate of 127.0.0.1, and one with its key as well."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "key set host")])
    now = datetime.datetime.now(datetime.UTC)
    usage = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "crl_sign",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=True, **usage), critical=True
        )
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    ca, leaf = folder / "ca.pem", folder / "leaf.pem"
    ca.write_bytes(public)
    leaf.write_bytes(public + private)
    return ca, leaf


class Caller:
    """An authenticator that fetches from `host`."""

    def __init__(
        self, host: Host, board: Board | None = None, *, trusts: bool = True, **jwks: Any
    ) -> None:
        ca = FilePath(host.ca) if trusts else None
        source = JwksConfig(url=host.url, ca=ca, **jwks)
        issuer = IssuerConfig(issuer=ISSUER, audiences=("headrace",), jwks=source)
        self.metrics = Metrics.private()
        self.authenticator = TokenVerifier(AuthConfig(issuers=(issuer,)), self.metrics, board)

    async def status(self, header: bytes) -> int:
        try:
            await self.authenticator.verify(header)
        except (Unauthenticated, Unavailable) as error:
            return error.status
        return 200

    def fetches(self, result: str) -> float:
        return self.metrics.value("headrace_jwks_fetch_total", ISSUER, result)


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    host = Host(tmp_path)
    await host.start()
    yield host
    await host.stop()


@pytest.fixture
async def make_caller(host: Host) -> AsyncIterator[Callable[..., Caller]]:
    made: list[Caller] = []

    def make(**settings: Any) -> Caller:
        made.append(Caller(host, **settings))
        return made[-1]

    yield make
    for caller in made:
        await caller.authenticator.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(8):
        while not condition():
            await asyncio.sleep(0.01)


def answer(**settings: Any) -> Answer:
    async def respond(_: web.Request) -> web.StreamResponse:
        return web.Response(**settings)

    return respond


async def _huge(request: web.Request) -> web.StreamResponse:
    """100 MB of JSON, for as long as anybody reads."""
    response = web.StreamResponse(headers={"content-type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"keys": [], "pad": "')
    for _ in range(100):
        await response.write(b"x" * 1_000_000)
    return response


async def _slow(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    raise AssertionError("nobody waits that long")


async def _dribble(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(600):
        await response.write(b" ")
        await asyncio.sleep(0.1)
    return response


async def _zipped(_: web.Request) -> web.StreamResponse:
    response = web.json_response({"keys": [SigningKey("zipped").jwk]})
    response.enable_compression(web.ContentCoding.gzip)
    return response


FAULTS: dict[str, tuple[Answer, str]] = {
    "500": (answer(status=500), "status"),
    "404": (answer(status=404, text="<html>"), "status"),
    "204": (answer(status=204), "status"),
    "html": (answer(text="<html>Sign in</html>", content_type="text/html"), "unusable"),
    "empty": (answer(body=b""), "unusable"),
    "no keys": (answer(text='{"keys": []}'), "unusable"),
    "100 MB": (_huge, "too_large"),
    "redirect": (answer(status=302, headers={"location": "/elsewhere"}), "status"),
    "slow": (_slow, "timeout"),
    "dribble": (_dribble, "timeout"),
    "compressed": (_zipped, "unusable"),
}


async def test_an_issuer_tells_where_its_keys_are(host: Host) -> None:
    key = SigningKey("a")
    host.keys = [key.jwk]
    issuer = IssuerConfig(
        issuer=host.issuer, audiences=("headrace",), jwks=JwksConfig(ca=FilePath(host.ca))
    )
    tokens = TokenVerifier(AuthConfig(issuers=(issuer,)), Metrics.private())
    try:
        assert await tokens.verify(key.header(issuer=host.issuer))
        successor = SigningKey("b")
        host.keys = [successor.jwk]
        assert await tokens.verify(successor.header(issuer=host.issuer))
        with pytest.raises(Unauthenticated):
            await tokens.verify(key.header(issuer=host.issuer))
    finally:
        await tokens.close()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_keeps_the_last_good_keys(
    host: Host, make_caller: Callable[..., Caller], fault: str
) -> None:
    key = SigningKey("a")
    host.keys = [key.jwk]
    caller = make_caller(timeout_s=0.25)
    assert await caller.status(key.header()) == 200
    host.answer, result = FAULTS[fault]
    assert await caller.status(key.header("unknown")) == 401
    assert caller.fetches(result) == 1
    assert await caller.status(key.header()) == 200
    assert (host.count, host.elsewhere) == (2, 0)


async def test_a_fault_from_the_start_and_its_end(tmp_path: Path) -> None:
    """All at once, for recovery takes a second or two."""

    async def suffer(name: str, fault: Answer, result: str) -> None:
        folder = tmp_path / name
        folder.mkdir()
        host, key = Host(folder), SigningKey("a")
        host.keys, host.answer = [key.jwk], fault
        await host.start()
        caller = Caller(host, timeout_s=0.7, cool_down_s=0.2)
        await caller.authenticator.start()
        await until(lambda: caller.fetches(result) >= 1)
        reason = caller.authenticator.ready() or ""
        assert reason.startswith(f"no key set of the issuer {ISSUER}: the last fetch failed: ")
        assert await caller.status(key.header()) == 503
        host.answer = None
        await until(lambda: caller.authenticator.ready() is None)
        assert await caller.status(key.header()) == 200
        await caller.authenticator.close()
        await host.stop()

    await asyncio.gather(*(suffer(name, *FAULTS[name]) for name in FAULTS))


async def test_a_host_that_is_down_and_comes_up(
    host: Host, make_caller: Callable[..., Caller]
) -> None:
    key = SigningKey("a")
    host.keys = [key.jwk]
    caller = make_caller(cool_down_s=0.2)
    await host.stop()
    await caller.authenticator.start()
    await until(lambda: caller.fetches("unreachable") >= 1)
    assert await caller.status(key.header()) == 503
    await host.start()
    await until(lambda: caller.authenticator.ready() is None)
    await host.stop()
    assert await caller.status(key.header()) == 200
    assert await caller.status(key.header("unknown")) == 401


async def test_a_host_that_is_not_trusted(host: Host, make_caller: Callable[..., Caller]) -> None:
    key = SigningKey("a")
    host.keys = [key.jwk]
    caller = make_caller(trusts=False)
    assert await caller.status(key.header()) == 503
    assert (host.count, caller.fetches("unreachable")) == (0, 1)


async def test_one_bad_key_is_left_out(host: Host, make_caller: Callable[..., Caller]) -> None:
    key, bad = SigningKey("a"), SigningKey("b")
    host.keys = [bad.jwk | {"x": "AAAA"}, {"kty": "new"}, key.jwk]
    caller = make_caller()
    assert await caller.status(key.header()) == 200
    assert await caller.status(bad.header()) == 401


async def test_rotation_and_removal(host: Host, make_caller: Callable[..., Caller]) -> None:
    old, new = SigningKey("old"), SigningKey("new")
    host.keys = [old.jwk]
    caller = make_caller()
    remembered = old.header()
    assert await caller.status(remembered) == 200
    host.keys = [old.jwk, new.jwk]
    assert await caller.status(new.header()) == 200
    assert await caller.status(remembered) == 200
    host.keys = [new.jwk]
    assert await caller.status(new.header("unknown")) == 401
    assert await caller.status(remembered) == 401
    assert host.count == 3


async def test_a_removed_key_is_refused_after_the_refresh(
    host: Host, make_caller: Callable[..., Caller]
) -> None:
    old, new = SigningKey("old"), SigningKey("new")
    host.keys = [old.jwk, new.jwk]
    caller = make_caller(cool_down_s=0.1, refresh_s=0.2)
    await caller.authenticator.start()
    header = old.header()
    assert await caller.status(header) == 200
    host.keys = [new.jwk]
    seen = host.count
    await until(lambda: host.count >= seen + 2)
    assert await caller.status(header) == 401
    assert await caller.status(new.header()) == 200


@pytest.mark.parametrize("fails", [False, True])
async def test_a_flood_and_a_rotation_in_it(
    host: Host, make_caller: Callable[..., Caller], fails: bool
) -> None:
    cool_down_s = 0.6
    old, new = SigningKey("old"), SigningKey("new")
    host.keys = [old.jwk]
    caller = make_caller(cool_down_s=cool_down_s)
    started_at = time.monotonic()
    assert await caller.status(old.header()) == 200
    if fails:
        host.answer = FAULTS["500"][0]
    flood = [old.header(f"unknown {number}") for number in range(1000)]
    assert {await caller.status(header) for header in flood} == {401}
    assert host.count <= 3 + (time.monotonic() - started_at) / cool_down_s
    host.answer, host.keys = None, [old.jwk, new.jwk]
    rotated_at, header = time.monotonic(), new.header()
    while await caller.status(header) != 200:
        await asyncio.gather(*(caller.status(old.header(f"{i} {rotated_at}")) for i in range(20)))
        await asyncio.sleep(0.02)
        assert time.monotonic() - rotated_at < cool_down_s + 1.0
    assert host.count <= 3 + (time.monotonic() - started_at) / cool_down_s
    assert await caller.status(old.header()) == 200


def _worker(host: Host, board: Board, key: SigningKey, pipe: Any) -> None:
    """A forked worker: says how its requests ended, as often as it is asked."""

    async def serve(url: str) -> None:
        host.url = url
        caller = Caller(host, board, cool_down_s=30.0)
        await caller.authenticator.start()
        good = await caller.status(key.header())
        flood = {await caller.status(key.header(f"{os.getpid()} {i}")) for i in range(300)}
        pipe.send((good, flood, caller.authenticator.ready()))
        await caller.authenticator.close()

    asyncio.run(serve(pipe.recv()))


async def _from(pipe: Any) -> Any:
    await until(pipe.poll)
    return pipe.recv()


def _fork(host: Host, board: Board, key: SigningKey, count: int) -> list[tuple[Any, Any]]:
    context = multiprocessing.get_context("fork")
    workers = []
    for _ in range(count):
        here, there = context.Pipe()
        worker = context.Process(target=_worker, args=(host, board, key, there), daemon=True)
        worker.start()
        workers.append((worker, here))
    return workers


def test_two_workers_fetch_as_one(tmp_path: Path) -> None:
    host, board, key = Host(tmp_path), Board(1), SigningKey("a")
    host.keys = [key.jwk]
    workers = _fork(host, board, key, 2)

    async def serve() -> None:
        await host.start()
        for _, pipe in workers:
            pipe.send(host.url)
        for _, pipe in workers:
            assert await _from(pipe) == (200, {401}, None)
        assert host.count == 3
        await host.stop()

    asyncio.run(serve())
    for worker, _ in workers:
        worker.join(5)
        assert worker.exitcode == 0


def test_a_worker_that_dies_while_it_fetches(tmp_path: Path) -> None:
    host, board, key = Host(tmp_path), Board(1), SigningKey("a")
    host.keys = [key.jwk]
    (first, first_pipe), (second, second_pipe) = _fork(host, board, key, 2)

    async def serve() -> None:
        await host.start()
        host.answer = _slow
        first_pipe.send(host.url)
        await until(lambda: host.count == 1)
        second_pipe.send(host.url)
        await asyncio.sleep(0.2)
        assert host.count == 1
        host.answer = None
        os.kill(first.pid or 0, signal.SIGKILL)
        assert await _from(second_pipe) == (200, {401}, None)
        assert host.count == 3
        await host.stop()

    asyncio.run(serve())
    first.join(5)
    second.join(5)
    assert (first.exitcode, second.exitcode) == (-signal.SIGKILL, 0)
