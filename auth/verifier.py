"""JSON Web Tokens: the header `Authorization` in, `Principal` out. Performs.

The signature of a token is checked once per worker; after that the header is known by its SHA-256
until the token expires or the issuer's key set changes, and costs no more than a look-up.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from auth.board import Board
from auth.claims import check_required, principal_of
from auth.config import AuthConfig, IssuerConfig
from auth.discovery import metadata_url
from auth.fetcher import DiscoveryFetcher, Fetcher, FetchFailed, FileFetcher, UrlFetcher
from auth.key_copy import KeyCopy
from auth.keyset import KeySet, KeySetError
from auth.revocation import Revoked, names_of
from auth.source import KeySource
from auth.token import (
    MAX_TOKEN_BYTES,
    TokenNotYet,
    TokenRefused,
    UnverifiedToken,
    bearer_token,
    check_token,
    read_token,
    verify_signature,
)
from core.clock import Clock
from core.errors import ConfigError, Unauthenticated, Unavailable
from core.identity import file_identity
from core.metrics import Metrics
from core.principal import Principal

MAX_REFUSED = 4096
REFUSED_S = 60.0
"""A refusal is looked up for so long: clocks may have been set right since."""
REFUSAL = "The credentials are missing or not valid."

_SCHEME = b"Bearer "
_MAX_HEADER_BYTES = len(_SCHEME) + MAX_TOKEN_BYTES

T = TypeVar("T")

_log = logging.getLogger("headrace.auth")


class _Remembered(NamedTuple):
    principal: Principal
    expires_at: float
    source: KeySource
    epoch: int
    names: frozenset[str]


class _Refused(NamedTuple):
    fault: str
    until: float
    source: KeySource | None
    epoch: int


class TokenVerifier:
    """Bearer tokens of the configured issuers.

    `board`: made before the fork when there are several workers (None: one of our own). `copies`:
    the folder where fetched key sets are kept (None: nowhere). `revoked`: looked at for each
    token, known or not. Raises ConfigError when a key set's
    file or its authorities cannot be used.
    """

    def __init__(
        self,
        config: AuthConfig,
        metrics: Metrics,
        board: Board | None = None,
        *,
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
        make_fetcher: Callable[[IssuerConfig], Fetcher] | None = None,
        copies: str | None = None,
        revoked: Revoked | None = None,
    ) -> None:
        self._clock, self._wall_clock = clock, wall_clock
        self._revoked = Revoked() if revoked is None else revoked
        self._max_remembered = config.remembered_tokens
        # While half of the room is free it does not matter which token was used last.
        self._recent_from = self._max_remembered // 2
        self._remembered: OrderedDict[bytes, _Remembered] = OrderedDict()
        self._refused: OrderedDict[bytes, _Refused] = OrderedDict()
        results = metrics.counter(
            "headrace_auth_total", "Authentications, by how they ended.", ("result",)
        )
        self._count_cached = results.labels("cached")
        self._count_verified = results.labels("verified")
        self._count_refused = results.labels("refused")
        self._count_unavailable = results.labels("unavailable")
        fetches = metrics.counter(
            "headrace_jwks_fetch_total", "Fetches of key sets.", ("issuer", "result")
        )
        workers = metrics.gauge(
            "headrace_jwks_workers",
            "Workers by the state of their key set: fresh, stale or none.",
            ("issuer", "state"),
        )
        board = board or Board(max(1, len(config.issuers)))
        make_fetcher = make_fetcher or fetcher_for
        self._sources = {
            issuer.issuer: KeySource(
                issuer,
                slot=board.slot(_slot_name(issuer), clock()),
                fetcher=make_fetcher(issuer),
                fetches=fetches,
                workers=workers,
                clock=clock,
                copy=_copy_of(issuer, copies),
                wall_clock=wall_clock,
            )
            for issuer in config.issuers
        }

    def __repr__(self) -> str:
        return f"TokenVerifier({list(self._sources)}, {len(self._remembered)} tokens remembered)"

    async def start(self) -> None:
        """Begin with the key sets on disk, and to fetch new ones. Does not wait for those: see
        `ready`."""
        await self.restore()
        for source in self._sources.values():
            source.start()

    async def restore(self) -> None:
        """Take the key sets on disk, where none was fetched."""
        await asyncio.gather(*(source.restore() for source in self._sources.values()))

    async def close(self) -> None:
        await asyncio.gather(*(source.close() for source in self._sources.values()))

    def ready(self) -> str | None:
        """None once every issuer's key set is at hand, else the reason in words."""
        reasons = [source.ready() for source in self._sources.values()]
        return "; ".join(reason for reason in reasons if reason is not None) or None

    def key_set_ages(self) -> dict[str, float | None]:
        """Issuer -> seconds since its key set was last fetched on this host (None: never)."""
        return {name: source.age() for name, source in self._sources.items()}

    async def verify(self, authorization: bytes | None, digest: bytes | None = None) -> Principal:
        """Who sent this value of the header `Authorization`. `digest`: what `recall` gave when it
        did not know, so that nothing is hashed twice.

        Raises Unauthenticated, always with the same words, or Unavailable when the issuer's key
        set was never had.
        """
        if digest is None:
            digest, principal = self.recall(authorization)
            if principal is not None:
                return principal
        try:
            raw = bearer_token(authorization)
            if not digest:
                raise TokenRefused("too long")
            principal = await self._verify(raw, digest)
        except TokenRefused as error:
            self._count_refused.inc()
            _log.debug("token refused: %s", error)
            raise Unauthenticated(REFUSAL, str(error)) from None
        except Unavailable:
            self._count_unavailable.inc()
            raise
        self._count_verified.inc()
        return principal

    def recall(self, authorization: bytes | None) -> tuple[bytes, Principal | None]:
        """The digest that a credential is remembered by (empty: it never is), and whose it is, if
        that is known already; None where it would have to be found out."""
        if authorization is None or len(authorization) > _MAX_HEADER_BYTES:
            return b"", None
        # Nearly all requests end here: the header, as it stands, was good before.
        digest = hashlib.sha256(authorization).digest()
        principal = self._recall(digest)
        if principal is None and (spelt := _spelt(authorization)) != authorization:
            digest = hashlib.sha256(spelt).digest()
            principal = self._recall(digest)
        return digest, principal

    def _recall(self, digest: bytes) -> Principal | None:
        """Whose header this is, if it was found good and still is. Counts it then."""
        known = self._remembered.get(digest)
        if known is None:
            return None
        principal, expires_at, source, epoch, names = known
        if epoch != source.epoch or self._wall_clock() >= expires_at:
            del self._remembered[digest]
            return None
        if self._revoked.names and not names.isdisjoint(self._revoked.names):
            return None
        if len(self._remembered) >= self._recent_from:
            self._remembered.move_to_end(digest)
        self._count_cached.inc()
        return principal

    async def _verify(self, raw: bytes, digest: bytes) -> Principal:
        refused = self._refused.get(digest)
        if refused is not None:
            fault, until, by, epoch = refused
            if self._clock() < until and (by is None or epoch == by.epoch):
                raise TokenRefused(fault)
        source: KeySource | None = None
        epoch, refused_until = 0, 0.0
        try:
            token = read_token(raw)
            source = self._source(token)
            # Before the key: one found after it was taken out would count for good.
            epoch = source.epoch
            expires_at = check_token(token, source.issuer, self._wall_clock())
            key = source.find(token.kid, token.algorithm)
            if key is None and await source.find_fresh(token.kid, token.algorithm) is not None:
                epoch = source.epoch
                key = source.find(token.kid, token.algorithm)
            if key is None:
                refused_until = source.absent_until(token.kid, token.algorithm)
                raise TokenNotYet("unknown key")
            verify_signature(token, key)
            check_required(token.claims, source.issuer.required_claims)
            principal = principal_of(token.claims, source.issuer.claims)
            names = names_of(principal, token.claims.get("jti"))
            if not names.isdisjoint(self._revoked.names):
                raise TokenNotYet("revoked")
        except TokenRefused as error:
            if not isinstance(error, TokenNotYet):
                refused_until = self._clock() + REFUSED_S
            if refused_until > self._clock():
                known_bad = _Refused(str(error), refused_until, source, epoch)
                _put(self._refused, digest, known_bad, MAX_REFUSED)
            raise
        known = _Remembered(principal, expires_at, source, epoch, names)
        _put(self._remembered, digest, known, self._max_remembered)
        return principal

    def _source(self, token: UnverifiedToken) -> KeySource:
        name = token.issuer
        source = self._sources.get(name) if isinstance(name, str) else None
        if source is None:
            raise TokenRefused("unknown issuer")
        return source


def _spelt(authorization: bytes) -> bytes:
    """The one spelling of each token, so that none is remembered twice."""
    if authorization[:7].lower() != b"bearer ":
        return authorization
    return _SCHEME + authorization[7:].lstrip(b" ")


def _put(entries: OrderedDict[bytes, T], digest: bytes, entry: T, limit: int) -> None:
    entries[digest] = entry
    if len(entries) > limit:
        entries.popitem(last=False)


def _slot_name(issuer: IssuerConfig) -> str:
    """A changed file has another one: a reload must not go on with keys that were taken out."""
    url, file = issuer.jwks.url, issuer.jwks.file
    if issuer.is_discovered:
        url = metadata_url(issuer.issuer)
    return repr((url, file and (file, file_identity(file)), sorted(issuer.algorithms)))


def _copy_of(issuer: IssuerConfig, folder: str | None) -> KeyCopy | None:
    if folder is None or issuer.jwks.file is not None:
        return None
    return KeyCopy(folder, repr((issuer.issuer, issuer.jwks.url)))


def fetcher_for(issuer: IssuerConfig) -> Fetcher:
    """Raises ConfigError when the file of keys or of authorities cannot be used."""
    path = issuer.jwks.file
    if issuer.is_discovered:
        return DiscoveryFetcher(issuer.issuer, issuer.jwks, UrlFetcher(issuer.jwks))
    if path is None:
        return UrlFetcher(issuer.jwks)
    fetcher = FileFetcher(path)
    try:
        KeySet.parse(fetcher.read(), issuer.algorithms)
    except (FetchFailed, KeySetError) as error:
        raise ConfigError(f"the key set {path} cannot be used: {error}") from error
    return fetcher
