from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from auth.api_key import digest_of, make_key
from auth.authenticator import (
    TOO_MANY_FAILURES,
    TOO_MANY_REQUESTS,
    AnonymousAuthenticator,
    Authenticator,
)
from auth.certificates import CertificateConfig
from auth.config import AuthConfig, RevocationsConfig, ThrottleConfig
from auth.key_config import ApiKeyConfig, ApiKeysConfig
from auth.verifier import REFUSAL
from core.errors import RateLimited, Unauthenticated
from core.exchange import ClientCertificate, Header, Request
from core.metrics import Metrics
from core.principal import Principal
from core.section import FilePath

WALL = 1_700_000_000.0
KEY = make_key(bytes(32)).encode()
KEYS = ApiKeysConfig(keys=(ApiKeyConfig(id="k", sha256=digest_of(KEY).hex(), tenant="by-key"),))


def request(*headers: Header, peer: str = "192.0.2.1") -> Request:
    return Request(
        method="POST",
        path="/v1/models",
        query="",
        headers=headers,
        body=b"",
        peer=peer,
        version="1.1",
        received_at=0.0,
        complete_at=0.0,
    )


def bearer(credential: bytes, scheme: bytes = b"Bearer ") -> Request:
    return request((b"authorization", scheme + credential))


class World:
    def __init__(self, config: AuthConfig, fetcher: Any, clock: Any, wall: Any) -> None:
        self.metrics = Metrics.private()
        self.clock, self.wall = clock, wall
        self.authenticator = Authenticator(
            config,
            self.metrics,
            clock=clock,
            wall_clock=wall,
            make_fetcher=lambda _: fetcher,
        )

    async def fault(self, shown: Request) -> str:
        with pytest.raises(Unauthenticated) as caught:
            await self.authenticator.authenticate(shown)
        assert caught.value.message == REFUSAL
        return caught.value.fault

    def counted(self, result: str) -> float:
        return self.metrics.value("headrace_auth_total", result)


@pytest.fixture
def key(make_key: Callable[..., Any]) -> Any:
    return make_key()


@pytest.fixture
def make_world(
    key: Any, make_issuer: Any, make_fetcher: Any, clock: Any, wall: Any
) -> Callable[..., World]:
    def make(**sections: Any) -> World:
        config = AuthConfig(**{"issuers": (make_issuer(),), "api_keys": KEYS} | sections)
        return World(config, make_fetcher(key.jwk), clock, wall)

    return make


async def test_tokens_and_keys_are_told_apart_by_form(
    make_world: Callable[..., World], key: Any
) -> None:
    world = make_world()
    authenticate, token = world.authenticator.authenticate, key.token()
    for scheme in (b"Bearer ", b"bearer   "):
        assert (await authenticate(bearer(KEY, scheme))).tenant == "by-key"
        assert (await authenticate(bearer(token, scheme))).tenant == "alice"
    assert (await authenticate(request((b"x-api-key", KEY)))).tenant == "by-key"
    assert (await authenticate(request((b"x-api-key", token)))).tenant == "alice"
    assert (world.counted("key"), world.counted("verified"), world.counted("cached")) == (3, 1, 2)


async def test_authorization_comes_before_x_api_key(make_world: Callable[..., World]) -> None:
    world = make_world()
    both = request((b"authorization", b"Bearer nonsense"), (b"x-api-key", KEY))
    assert await world.fault(both) == "not three parts of base64url"


@pytest.mark.parametrize(
    ("shown", "fault"),
    [
        (request(), "no bearer token"),
        (request((b"x-api-key", b"")), "not three parts of base64url"),
        (request((b"authorization", b"Basic " + KEY)), "no bearer token"),
        (bearer(KEY[:-1]), "mistyped API key"),
        (bearer(make_key(b"1" * 32).encode()), "unknown API key"),
        (bearer(b"hr_" + b"0" * 1_000_000), "mistyped API key"),
    ],
)
async def test_the_fault_is_for_the_operator(
    make_world: Callable[..., World], shown: Request, fault: str
) -> None:
    world = make_world()
    assert await world.fault(shown) == fault
    assert world.counted("refused") == 1


async def test_either_may_be_left_out(make_world: Callable[..., World], key: Any) -> None:
    only_tokens = make_world(api_keys=None)
    assert await only_tokens.fault(bearer(KEY)) == "unknown API key"
    only_keys = make_world(issuers=())
    assert only_keys.authenticator.ready() is None
    assert await only_keys.fault(bearer(key.token())) == "unknown issuer"
    assert (await only_keys.authenticator.authenticate(bearer(KEY))).tenant == "by-key"


async def test_an_address_that_fails_too_often_is_heard_no_more(
    make_world: Callable[..., World], key: Any
) -> None:
    world = make_world(throttle=ThrottleConfig(failures_per_minute=60, failures_burst=2))
    authenticate, token = world.authenticator.authenticate, key.token()
    await authenticate(bearer(token))
    assert await world.fault(bearer(b"x")) != ""
    assert await world.fault(bearer(KEY[:-1])) != ""
    for shown in (bearer(b"x"), bearer(key.token()), bearer(KEY[:-1]), request()):
        with pytest.raises(RateLimited) as caught:
            await authenticate(shown)
        assert (caught.value.message, caught.value.retry_after_s) == (TOO_MANY_FAILURES, 1)
    assert (await authenticate(bearer(token))).tenant == "alice"
    assert (await authenticate(bearer(KEY))).tenant == "by-key"
    assert (await authenticate(request((b"x-api-key", KEY)))).tenant == "by-key"
    elsewhere = request((b"authorization", b"Bearer " + key.token()), peer="192.0.2.2")
    assert (await authenticate(elsewhere)).tenant == "alice"
    world.clock.now += 1
    assert (await authenticate(bearer(key.token()))).tenant == "alice"
    assert world.counted("throttled") == 4


async def test_an_address_that_asks_too_often_is_told_before_anything(
    make_world: Callable[..., World],
) -> None:
    world = make_world(throttle=ThrottleConfig(requests_per_s=2, requests_burst=1))
    authenticate = world.authenticator.authenticate
    await authenticate(bearer(KEY))
    for shown in (bearer(KEY), bearer(b"x")):
        with pytest.raises(RateLimited) as caught:
            await authenticate(shown)
        assert (caught.value.message, caught.value.retry_after_s) == (TOO_MANY_REQUESTS, 0.5)
    assert (world.counted("key"), world.counted("refused")) == (1, 0)


async def test_the_throttle_can_be_off(make_world: Callable[..., World]) -> None:
    world = make_world(throttle=ThrottleConfig(failures_per_minute=None))
    for _ in range(1000):
        assert await world.fault(bearer(b"x")) != ""


async def test_what_is_revoked_is_refused_at_once(
    make_world: Callable[..., World], key: Any, tmp_path: Path
) -> None:
    path = tmp_path / "revoked"
    path.write_text("key:other\n")
    world = make_world(revocations=RevocationsConfig(file=FilePath(path)))
    authenticate = world.authenticator.authenticate
    lost, kept = key.token({"jti": "7"}), key.token({"jti": "8"})
    for shown in (lost, kept, KEY):
        await authenticate(bearer(shown))
    revoked = world.authenticator._revoked  # what a `RevocationWatch` changes
    revoked.names = frozenset({"jti:7", "key:k"})
    assert [await world.fault(bearer(shown)) for shown in (lost, KEY)] == ["revoked"] * 2
    await authenticate(bearer(kept))
    revoked.names = frozenset({"user:alice/alice"})
    assert await world.fault(bearer(kept)) == "revoked"
    revoked.names = frozenset()
    for shown in (lost, kept, KEY):
        await authenticate(bearer(shown))


async def test_a_certificate_counts_where_nothing_else_is_shown(
    make_world: Callable[..., World], key: Any
) -> None:
    rule = CertificateConfig(dns="a.example", tenant="by-certificate", user="a")
    world = make_world(client_certificates=(rule,))
    authenticate = world.authenticator.authenticate

    def certified(*headers: Header, name: str = "a.example") -> Request:
        made = request(*headers)
        made.client_certificate = ClientCertificate("", (name,), (), "0" * 64, WALL + 1)
        return made

    assert (await authenticate(certified())).tenant == "by-certificate"
    assert (await authenticate(certified((b"x-api-key", KEY)))).tenant == "by-key"
    token = (b"authorization", b"Bearer " + key.token())
    assert (await authenticate(certified(token))).tenant == "alice"
    assert await world.fault(certified((b"x-api-key", KEY[:-1]))) == "mistyped API key"
    assert await world.fault(certified(name="b.example")) == "no bearer token"
    world.authenticator._revoked.names = frozenset({"user:by-certificate/a"})
    assert await world.fault(certified()) == "no bearer token"
    world.authenticator._revoked.names = frozenset()
    world.wall.now += 1
    assert await world.fault(certified()) == "no bearer token"
    assert world.counted("certificate") == 1


async def test_nothing_shows_a_credential(make_world: Callable[..., World], key: Any) -> None:
    world = make_world()
    await world.authenticator.authenticate(bearer(KEY))
    await world.authenticator.authenticate(bearer(key.token()))
    shown = repr(world.authenticator)
    assert KEY.decode() not in shown
    assert key.token().decode() not in shown


async def test_without_authentication_everybody_is_anonymous() -> None:
    authenticator = AnonymousAuthenticator()
    await authenticator.start()
    assert authenticator.ready() is None
    assert await authenticator.authenticate(request()) == Principal(tenant="anonymous")
    await authenticator.close()
