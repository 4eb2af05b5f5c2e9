"""Who sent a request: a JSON Web Token, an API key or a certificate in, a `Principal` out.

Performs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from auth.api_key import looks_like_key
from auth.board import Board
from auth.certificates import CertificateCallers
from auth.config import AuthConfig, IssuerConfig
from auth.fetcher import Fetcher
from auth.key_copy import KeyCopy
from auth.key_ring import KeyRing
from auth.revocation import Revoked, names_of, read_file
from auth.revocation_watch import RevocationList, RevocationWatch
from auth.throttle import AddressBuckets
from auth.token import TokenRefused
from auth.verifier import REFUSAL, TokenVerifier
from core.clock import Clock
from core.errors import RateLimited, Unauthenticated
from core.exchange import Request
from core.metrics import Metrics
from core.network import network_of
from core.principal import Principal

_SCHEME = b"Bearer "
TOO_MANY_REQUESTS = "Too many requests from this address."
TOO_MANY_FAILURES = "Too many failed authentications from this address."


class Authenticator:
    """The configured ways to say who one is, told apart by the form of the credential.

    `keys`: those of the configuration (None: they are loaded here). `board`, `make_fetcher`: see
    `TokenVerifier`, and `copies` too, which `cache_dir` overrides. `revocations`: the list to
    follow. Raises ConfigError when a file cannot be used.
    """

    def __init__(
        self,
        config: AuthConfig,
        metrics: Metrics,
        board: Board | None = None,
        *,
        keys: KeyRing | None = None,
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
        make_fetcher: Callable[[IssuerConfig], Fetcher] | None = None,
        copies: str | None = None,
        revocations: RevocationList | None = None,
    ) -> None:
        self._clock, self._wall_clock = clock, wall_clock
        throttle = config.throttle
        self._requests: AddressBuckets | None = None
        if throttle.requests_per_s is not None:
            self._requests = AddressBuckets(throttle.requests_per_s, throttle.requests_burst)
        self._failures: AddressBuckets | None = None
        if throttle.failures_per_minute is not None:
            per_s = throttle.failures_per_minute / 60
            self._failures = AddressBuckets(per_s, throttle.failures_burst)
        self._keys = KeyRing.load(config.api_keys) if keys is None else keys
        self._certificates: CertificateCallers | None = None
        if config.client_certificates:
            self._certificates = CertificateCallers(config.client_certificates)
        always = read_file(config.revocations.file)
        self._revoked = Revoked(always)
        folder = config.cache_dir or copies
        self._watch: RevocationWatch | None = None
        if revocations is not None:
            self._watch = RevocationWatch(
                revocations,
                self._revoked,
                always=always,
                copy=None if folder is None else KeyCopy(folder, f"revocations {revocations!r}"),
                workers=metrics.gauge(
                    "headrace_revocations_unavailable",
                    "Workers that cannot follow the list of revocations.",
                ),
                wall_clock=wall_clock,
            )
        self._tokens = TokenVerifier(
            config,
            metrics,
            board,
            clock=clock,
            wall_clock=wall_clock,
            make_fetcher=make_fetcher,
            copies=folder,
            revoked=self._revoked,
        )
        results = metrics.counter(
            "headrace_auth_total", "Authentications, by how they ended.", ("result",)
        )
        self._count_key = results.labels("key")
        self._count_certificate = results.labels("certificate")
        self._count_refused = results.labels("refused")
        self._count_throttled = results.labels("throttled")

    def __repr__(self) -> str:
        return f"<Authenticator {self._tokens!r} {self._keys!r}>"

    async def start(self) -> None:
        """Begin to fetch key sets. Does not wait for them: see `ready`."""
        await self._tokens.start()
        if self._watch is not None:
            await self._watch.start()

    async def restore(self) -> None:
        """Take the key sets on disk, and the revocations; part of `start`."""
        await self._tokens.restore()
        if self._watch is not None:
            await self._watch.look()

    async def close(self) -> None:
        if self._watch is not None:
            await self._watch.close()
        await self._tokens.close()

    def ready(self) -> str | None:
        """None once every issuer's key set is at hand, else the reason in words."""
        return self._tokens.ready()

    async def authenticate(self, request: Request) -> Principal:
        """Who sent `request`, by `Authorization: Bearer`, or else `x-api-key`, or without either
        by the client certificate.

        Raises Unauthenticated, always with the same words; Unavailable when the issuer's key set
        was never had; RateLimited when its address asks or fails too often.
        """
        shown = request.header(b"authorization")
        digest: bytes | None = None
        if self._requests is None and shown is not None:
            # Nearly all requests end here: good callers are no matter of throttling.
            digest, principal = self._tokens.recall(shown)
            if principal is not None:
                return principal
        network = network_of(request.peer)
        if self._requests is not None:
            wait_s = self._requests.take(network, self._clock())
            if wait_s > 0:
                raise self._throttled(TOO_MANY_REQUESTS, "address_rate_limited", wait_s)
        if shown is None and (own := request.header(b"x-api-key")) is not None:
            shown = _SCHEME + own
        if shown is None and self._certificates is not None:
            principal = self._by_certificate(request, self._certificates)
            if principal is not None:
                return principal
        failures = self._failures
        if failures is None:
            return await self._identify(shown, digest)
        wait_s = failures.wait_s(network, self._clock())
        if wait_s > 0:
            return self._only_known(shown, wait_s)
        try:
            return await self._identify(shown, digest)
        except Unauthenticated:
            failures.take(network, self._clock())
            raise

    async def _identify(self, shown: bytes | None, digest: bytes | None) -> Principal:
        """`digest`: of a header that was looked up already, see `TokenVerifier.recall`."""
        key = _key_in(shown)
        return await self._tokens.verify(shown, digest) if key is None else self._by_key(key)

    def _only_known(self, shown: bytes | None, wait_s: float) -> Principal:
        """Nothing is worked out for an address that fails so often; good callers behind the same
        address go on."""
        key = _key_in(shown)
        principal = None
        if key is None:
            principal = self._tokens.recall(shown)[1]
        else:
            with suppress(Unauthenticated):
                principal = self._by_key(key)
        if principal is None:
            raise self._throttled(TOO_MANY_FAILURES, "too_many_auth_failures", wait_s)
        return principal

    def _throttled(self, words: str, code: str, wait_s: float) -> RateLimited:
        self._count_throttled.inc()
        return RateLimited(words, code=code, retry_after_s=wait_s)

    def _by_certificate(self, request: Request, callers: CertificateCallers) -> Principal | None:
        """Who is there by its certificate alone. None: it has to say so otherwise."""
        certificate = request.client_certificate
        if certificate is None:
            return None
        principal = callers.find(certificate, self._wall_clock())
        revoked = self._revoked.names
        if principal is None or (revoked and not names_of(principal).isdisjoint(revoked)):
            return None
        self._count_certificate.inc()
        return principal

    def _by_key(self, key: bytes) -> Principal:
        try:
            principal = self._keys.find(key, self._wall_clock())
            revoked = self._revoked.names
            if revoked and not names_of(principal).isdisjoint(revoked):
                raise TokenRefused("revoked")
        except TokenRefused as error:
            self._count_refused.inc()
            raise Unauthenticated(REFUSAL, str(error)) from None
        self._count_key.inc()
        return principal


def _key_in(shown: bytes | None) -> bytes | None:
    """The API key in the value of `Authorization`, if it is meant as one."""
    if shown is None or shown[:7].lower() != b"bearer ":
        return None
    credential = shown[7:].lstrip(b" ")
    return credential if looks_like_key(credential) else None


class AnonymousAuthenticator:
    """`auth: none`: everybody is the tenant `anonymous`."""

    _principal = Principal(tenant="anonymous")

    async def start(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    def ready(self) -> str | None:
        return None

    async def authenticate(self, request: Request) -> Principal:
        return self._principal
