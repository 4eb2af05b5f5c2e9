from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth import verifier
from auth.board import Board
from auth.config import AuthConfig, IssuerConfig, JwksConfig
from auth.fetcher import FetchFailed
from auth.token import read_token
from auth.verifier import REFUSAL, TokenVerifier
from core.errors import ConfigError, Unauthenticated, Unavailable
from core.metrics import Metrics
from core.principal import Principal
from core.section import FilePath

MakeKey = Callable[..., Any]
WALL = 1_700_000_000.0


class World:
    """An authenticator of one issuer with one key, `key`, and what it stands on."""

    def __init__(
        self,
        key: Any,
        issuer: IssuerConfig,
        *,
        fetcher: Any,
        clock: Any,
        wall: Any,
        remembered: int,
    ) -> None:
        self.key = key
        self.fetcher = fetcher
        self.clock = clock
        self.wall = wall
        self.metrics = Metrics.private()
        self.authenticator = TokenVerifier(
            AuthConfig(issuers=(issuer,), remembered_tokens=remembered),
            self.metrics,
            clock=clock,
            wall_clock=wall,
            make_fetcher=lambda _: fetcher,
        )

    async def show(self, token: bytes) -> Principal:
        self.clock.now += 0.001
        return await self.authenticator.verify(b"Bearer " + token)

    async def refuses(self, token: bytes) -> None:
        with pytest.raises(Unauthenticated) as caught:
            await self.show(token)
        assert caught.value.message == REFUSAL
        assert caught.value.headers == ()  # the challenge is the edge's, for every 401

    def counted(self, result: str) -> float:
        return self.metrics.value("headrace_auth_total", result)


@pytest.fixture
def make_world(
    make_key: MakeKey, make_issuer: Any, make_fetcher: Any, clock: Any, wall: Any
) -> Callable[..., World]:
    def make(remembered: int = 100, **changes: Any) -> World:
        key = make_key()
        fetcher = make_fetcher(key.jwk)
        return World(
            key,
            make_issuer(**changes),
            fetcher=fetcher,
            clock=clock,
            wall=wall,
            remembered=remembered,
        )

    return make


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


async def test_a_good_token_names_its_principal(make_world: Callable[..., World]) -> None:
    world = make_world(claims={"tenant": "org", "tier": "plan", "models": "models"})
    token = world.key.token({"org": "acme", "plan": "gold", "models": ["qwen3"]})
    expected = Principal("acme", "alice", "gold", frozenset({"qwen3"}))
    assert await world.show(token) == expected
    assert await world.show(token) == expected
    assert (world.counted("verified"), world.counted("cached")) == (1, 1)


async def test_a_token_is_remembered_however_its_header_is_spelt(world: World) -> None:
    token = world.key.token()
    for scheme in (b"bearer  ", b"Bearer ", b"BEARER "):
        principal = await world.authenticator.verify(scheme + token)
        assert principal.subject == "alice"
    assert (world.counted("verified"), world.counted("cached")) == (1, 2)


async def test_a_remembered_token_expires(world: World) -> None:
    token = world.key.token()
    await world.show(token)
    world.wall.now += 629
    await world.show(token)
    assert world.counted("cached") == 1
    world.wall.now += 1
    await world.refuses(token)


async def test_a_remembered_token_goes_with_its_key(world: World, make_key: MakeKey) -> None:
    token = world.key.token()
    await world.show(token)
    successor = make_key("two")
    world.fetcher.keys = [successor.jwk]
    await world.show(successor.token())
    await world.refuses(token)


async def test_a_remembered_token_is_checked_again_when_keys_change(
    world: World, make_key: MakeKey
) -> None:
    token, successor = world.key.token(), make_key("two")
    await world.show(token)
    world.fetcher.keys.append(successor.jwk)
    await world.show(successor.token())
    await world.show(token)
    await world.show(token)
    assert (world.counted("verified"), world.counted("cached")) == (3, 1)


async def test_remembered_tokens_are_bounded(make_world: Callable[..., World]) -> None:
    world = make_world(remembered=2)
    first, second, third = (world.key.token({"sub": name}) for name in "abc")
    await world.show(first)
    await world.show(second)
    await world.show(first)
    await world.show(third)
    await world.show(first)
    assert world.counted("cached") == 2
    await world.show(second)
    assert (world.counted("verified"), world.counted("cached")) == (4, 2)


async def test_nothing_need_be_remembered(make_world: Callable[..., World]) -> None:
    world = make_world(remembered=0)
    token = world.key.token()
    await world.show(token)
    await world.show(token)
    assert world.counted("verified") == 2


async def test_a_bad_signature_is_refused_again_without_a_look(
    world: World, make_key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = make_key().token()
    await world.refuses(forged)
    with monkeypatch.context() as patched:
        patched.delattr(verifier, "verify_signature")
        await world.refuses(forged)


async def test_a_refused_token_is_good_once_its_key_is_there(
    world: World, make_key: MakeKey
) -> None:
    impostor = make_key("one")
    token = impostor.token()
    await world.refuses(token)
    world.fetcher.keys = [impostor.jwk]
    world.clock.now += 10
    await world.refuses(world.key.token(kid="unknown"))
    await world.show(token)


async def test_refused_tokens_are_bounded(
    world: World, make_key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifier, "MAX_REFUSED", 3)
    forger = make_key()
    for number in range(10):
        await world.refuses(forger.token({"sub": str(number)}))
    assert len(world.authenticator._refused) == 3


async def test_a_token_that_is_early_is_good_later(world: World) -> None:
    token = world.key.token({"nbf": world.wall.now + 100})
    await world.refuses(token)
    world.wall.now += 100
    await world.show(token)


async def test_an_unknown_key_that_appears_is_good_after_the_cool_down(
    world: World, make_key: MakeKey
) -> None:
    successor = make_key("two")
    token = successor.token()
    await world.refuses(token)
    world.fetcher.keys.append(successor.jwk)
    world.clock.now += 10
    await world.show(token)


async def test_clocks_that_step(world: World) -> None:
    token = world.key.token({"iat": world.wall.now})
    world.wall.now -= 20
    await world.show(token)
    world.wall.now -= 3600
    await world.refuses(world.key.token({"iat": world.wall.now + 3600, "sub": "bob"}))
    world.wall.now += 2 * 3600
    await world.refuses(token)


@pytest.mark.parametrize("issuer", ["https://id.example/", "https://id", "", None, 5, ["a"], {}])
async def test_issuers_are_compared_exactly(world: World, issuer: object) -> None:
    await world.refuses(world.key.token({"iss": issuer}))
    assert world.fetcher.count == 0


async def test_a_token_without_a_key_id(world: World, make_key: MakeKey) -> None:
    await world.show(world.key.token())
    await world.show(world.key.token({"sub": "bob"}, kid=None))
    world.fetcher.keys.append(make_key("two").jwk)
    world.clock.now += 100
    await world.refuses(world.key.token(kid="unknown"))
    await world.refuses(world.key.token({"sub": "carol"}, kid=None))


async def test_each_issuer_answers_for_its_own(
    make_key: MakeKey, make_issuer: Any, make_fetcher: Any, clock: Any, wall: Any
) -> None:
    first, second = make_key("same"), make_key("same")
    fetchers = {"a": make_fetcher(first.jwk), "b": make_fetcher(second.jwk)}
    jwks = {"a": JwksConfig(url="https://a.example/"), "b": JwksConfig(url="https://b.example/")}
    issuers = tuple(
        IssuerConfig(issuer=name, audiences=("headrace",), jwks=jwks[name]) for name in "ab"
    )
    authenticator = TokenVerifier(
        AuthConfig(issuers=issuers),
        Metrics.private(),
        clock=clock,
        wall_clock=wall,
        make_fetcher=lambda issuer: fetchers[issuer.issuer],
    )
    await authenticator.verify(b"Bearer " + first.token({"iss": "a"}))
    await authenticator.verify(b"Bearer " + second.token({"iss": "b"}))
    assert authenticator.ready() is None
    assert authenticator.key_set_ages() == {"a": 0, "b": 0}
    for key, name in ((first, "b"), (second, "a")):
        with pytest.raises(Unauthenticated):
            await authenticator.verify(b"Bearer " + key.token({"iss": name}))


async def test_without_keys_good_tokens_wait_and_bad_ones_do_not(world: World) -> None:
    world.fetcher.keys = []
    assert world.authenticator.ready() is not None
    with pytest.raises(Unavailable) as caught:
        await world.show(world.key.token())
    assert (caught.value.retry_after_s or 0) >= 1
    await world.refuses(world.key.token({"exp": world.wall.now - 100}))
    await world.refuses(world.key.token({"aud": "other"}))
    assert (world.counted("unavailable"), world.counted("refused")) == (1, 2)


@pytest.mark.parametrize("authorization", [None, b"", b"Bearer", b"Basic YTpi", b"Bearer a.b.c"])
async def test_no_token(world: World, authorization: bytes | None) -> None:
    with pytest.raises(Unauthenticated):
        await world.authenticator.verify(authorization)
    assert world.counted("refused") == 1


async def test_a_token_is_at_most_8_kib(world: World) -> None:
    def padded(size: int) -> bytes:
        token: bytes = world.key.token({"pad": "x" * size})
        return token

    sizes = range(5700, 6100, 5)
    fitting = [size for size in sizes if len(padded(size)) <= 8192]
    await world.show(padded(fitting[-1]))
    await world.refuses(padded(sizes[len(fitting)]))


async def test_the_header_cannot_choose_how_it_is_verified(world: World, make_key: MakeKey) -> None:
    attacker = make_key("evil")
    for headers in (
        {"jwk": attacker.jwk},
        {"jku": "https://evil.example/", "kid": "one"},
        {"x5u": "https://evil.example/", "kid": "one"},
        {"jwk": attacker.jwk, "kid": None},
    ):
        await world.refuses(attacker.token(**headers))
    for algorithm in ("none", "HS256"):
        await world.refuses(world.key.token(alg=algorithm))
    header, payload, _ = world.key.token(alg="none").split(b".")
    await world.refuses(header + b"." + payload + b".")


async def test_keys_from_a_file(tmp_path: Any, make_key: MakeKey, clock: Any, wall: Any) -> None:
    key, path = make_key(), tmp_path / "jwks.json"

    def build() -> TokenVerifier:
        jwks = JwksConfig(file=FilePath(path))
        issuer = IssuerConfig(issuer="https://id.example", audiences=("headrace",), jwks=jwks)
        config = AuthConfig(issuers=(issuer,))
        return TokenVerifier(config, Metrics.private(), clock=clock, wall_clock=wall)

    with pytest.raises(ConfigError, match="cannot read"):
        build()
    path.write_text("{}")
    with pytest.raises(ConfigError, match="no list"):
        build()
    path.write_text(json.dumps({"keys": [key.jwk]}))
    principal = await build().verify(b"Bearer " + key.token())
    assert principal.tenant == "alice"


async def test_a_key_file_that_was_changed_takes_effect_with_the_next_configuration(
    tmp_path: Any, make_key: Callable[..., Any], clock: Any, wall: Any
) -> None:
    """Though all share a board, on which the keys of before are still fresh."""
    board, path = Board(), tmp_path / "jwks.json"
    revoked, kept, added = make_key("revoked"), make_key("kept"), make_key("added")

    def build(*keys: Any) -> TokenVerifier:
        path.write_text(json.dumps({"keys": [key.jwk for key in keys]}))
        os.utime(path, ns=(len(keys), len(keys)))
        jwks = JwksConfig(file=FilePath(path))
        issuer = IssuerConfig(issuer="https://id.example", audiences=("headrace",), jwks=jwks)
        config = AuthConfig(issuers=(issuer,))
        return TokenVerifier(config, Metrics.private(), board, clock=clock, wall_clock=wall)

    before = build(revoked, kept)
    for key in (revoked, kept):
        await before.verify(b"Bearer " + key.token())
    after = build(kept, added, make_key("more"))
    with pytest.raises(Unauthenticated):
        await after.verify(b"Bearer " + revoked.token())
    for key in (kept, added):
        await after.verify(b"Bearer " + key.token())


def test_authorities_that_cannot_be_used(tmp_path: Any) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("no certificate")
    jwks = JwksConfig(url="https://id.example/", ca=FilePath(path))
    issuer = IssuerConfig(issuer="a", audiences=("b",), jwks=jwks)
    with pytest.raises(ConfigError, match=r"ca\.pem"):
        TokenVerifier(AuthConfig(issuers=(issuer,)), Metrics.private())


async def test_claims_that_must_be_there(make_world: Callable[..., World]) -> None:
    world = make_world(required_claims=("scope", "realm.id"))
    await world.show(world.key.token({"scope": "x", "realm": {"id": 7}}))
    await world.refuses(world.key.token({"scope": "x", "realm": {}}))
    await world.refuses(world.key.token())


async def test_a_refusal_is_found_out_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.show(world.key.token())  # from here on the key set is the same
    read: list[bytes] = []

    def reading(raw: bytes) -> Any:
        read.append(raw)
        return read_token(raw)

    monkeypatch.setattr(verifier, "read_token", reading)
    tokens = [
        world.key.token({"exp": WALL - 100}),
        world.key.token({"aud": "x"}),
        world.key.token({"sub": 3.5}),
        b"nonsense",
    ]
    for token in tokens * 3:
        await world.refuses(token)
    assert read == tokens
    world.clock.now += verifier.REFUSED_S
    await world.refuses(tokens[0])
    assert read == [*tokens, tokens[0]]


async def test_an_unknown_key_is_looked_for_once_a_cool_down(
    world: World, make_key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.show(world.key.token())
    read: list[bytes] = []

    def reading(raw: bytes) -> Any:
        read.append(raw)
        return read_token(raw)

    monkeypatch.setattr(verifier, "read_token", reading)
    strangers = [make_key(str(number)).token() for number in range(5)]  # more than may be fetched
    for token in strangers * 3:
        await world.refuses(token)
    assert read == strangers
    world.clock.now += 10
    for token in strangers:
        await world.refuses(token)
    assert read == strangers * 2


async def test_a_key_that_appears_in_between_is_good_at_once(
    world: World, make_key: MakeKey
) -> None:
    successor = make_key("two")
    token = successor.token()
    await world.refuses(token)
    world.fetcher.keys.append(successor.jwk)
    await world.refuses(world.key.token(kid="another"))  # it has the keys fetched
    await world.show(token)


async def test_what_was_looked_up_is_not_hashed_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = b"bearer " + world.key.token()
    digest, principal = world.authenticator.recall(shown)
    assert principal is None
    with monkeypatch.context() as patched:
        patched.delattr(verifier, "hashlib")
        assert (await world.authenticator.verify(shown, digest)).subject == "alice"
    assert world.authenticator.recall(shown) == (digest, Principal("alice", "alice"))


async def test_an_hour_without_the_issuer_refuses_no_good_token(
    world: World, make_key: MakeKey
) -> None:
    """A new token and an old one each half minute, and unknown keys in between."""
    await world.show(world.key.token())
    world.fetcher.fault = FetchFailed("unreachable", "no connection")
    stranger, remembered = make_key("two"), world.key.token({"exp": WALL + 10_000})
    for _ in range(120):
        world.clock.now += 30
        world.wall.now += 30
        await world.show(remembered)
        await world.show(world.key.token({"exp": world.wall.now + 600}))
        await world.refuses(stranger.token({"exp": world.wall.now + 600}))
    world.fetcher.fault = None
    world.fetcher.keys = [stranger.jwk]
    world.clock.now += 10
    await world.show(stranger.token({"exp": world.wall.now + 600}))
    await world.refuses(remembered)


async def test_what_may_mend_is_looked_at_again(world: World, make_key: MakeKey) -> None:
    early, successor = world.key.token({"nbf": WALL + 100}), make_key("two")
    await world.show(world.key.token())
    later = successor.token()
    await world.refuses(early)
    await world.refuses(later)
    world.fetcher.keys.append(successor.jwk)
    world.wall.now += 100
    world.clock.now += 20
    await world.show(early)
    await world.show(later)


_PARTS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b".", b"..", b"=", b"eyJhbGciOiJFUzI1NiJ9", b"bnVsbA", b"e30", b"\x00", b" "]),
)


_LONE = TokenVerifier(
    AuthConfig(
        issuers=(
            IssuerConfig(
                issuer="https://id.example",
                audiences=("headrace",),
                jwks=JwksConfig(url="https://id.example/jwks.json"),
            ),
        )
    ),
    Metrics.private(),
)


@given(scheme=st.sampled_from([b"Bearer ", b"bearer  ", b""]), parts=st.lists(_PARTS, max_size=6))
async def test_any_bytes_are_refused(scheme: bytes, parts: list[bytes]) -> None:
    with pytest.raises(Unauthenticated):
        await _LONE.verify(scheme + b"".join(parts))
