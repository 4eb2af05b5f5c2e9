"""Who sent a request: a JSON Web Token or an API key in, a `Principal` out. Performs."""

from __future__ import annotations

import time
from collections.abc import Callable

from auth.api_key import looks_like_key
from auth.board import Board
from auth.config import AuthConfig, IssuerConfig
from auth.fetcher import Fetcher
from auth.key_ring import KeyRing
from auth.token import TokenRefused
from auth.verifier import REFUSAL, TokenVerifier
from core.clock import Clock
from core.errors import Unauthenticated
from core.exchange import Request
from core.metrics import Metrics
from core.principal import Principal

_SCHEME = b"Bearer "


class Authenticator:
    """The configured ways to say who one is, told apart by the form of the credential.

    `keys`: those of the configuration (None: they are loaded here). `board`, `make_fetcher`: see
    `TokenVerifier`. Raises ConfigError when a file cannot be used.
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
    ) -> None:
        self._wall_clock = wall_clock
        self._keys = KeyRing.load(config.api_keys) if keys is None else keys
        self._tokens = TokenVerifier(
            config, metrics, board, clock=clock, wall_clock=wall_clock, make_fetcher=make_fetcher
        )
        results = metrics.counter(
            "headrace_auth_total", "Authentications, by how they ended.", ("result",)
        )
        self._count_key = results.labels("key")
        self._count_refused = results.labels("refused")

    def __repr__(self) -> str:
        return f"<Authenticator {self._tokens!r} {self._keys!r}>"

    async def start(self) -> None:
        """Begin to fetch key sets. Does not wait for them: see `ready`."""
        await self._tokens.start()

    async def close(self) -> None:
        await self._tokens.close()

    def ready(self) -> str | None:
        """None once every issuer's key set is at hand, else the reason in words."""
        return self._tokens.ready()

    async def authenticate(self, request: Request) -> Principal:
        """Who sent `request`, by `Authorization: Bearer`, or else `x-api-key`.

        Raises Unauthenticated, always with the same words, or Unavailable when the issuer's key
        set was never had.
        """
        shown = request.header(b"authorization")
        if shown is None and (own := request.header(b"x-api-key")) is not None:
            shown = _SCHEME + own
        if shown is not None and shown[:7].lower() == b"bearer ":
            credential = shown[7:].lstrip(b" ")
            if looks_like_key(credential):
                return self._by_key(credential)
        return await self._tokens.verify(shown)

    def _by_key(self, key: bytes) -> Principal:
        try:
            principal = self._keys.find(key, self._wall_clock())
        except TokenRefused as error:
            self._count_refused.inc()
            raise Unauthenticated(REFUSAL, str(error)) from None
        self._count_key.inc()
        return principal


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
