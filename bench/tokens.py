"""`python -m bench.tokens`: what a credential costs, good or bad, in CPU time per request.

Each kind is shown to an authenticator as a worker has it. Kinds take turns, a batch at a time, and
the median of the batches is printed. Where it says `each another`, none was seen before or is
remembered; else this very credential was accepted or refused before. The bar is for those that were
refused.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import jwt
import uvloop
from cryptography.hazmat.primitives.asymmetric import ec

from auth.api_key import ENTROPY_BYTES, digest_of, make_key
from auth.authenticator import Authenticator
from auth.config import AuthConfig, IssuerConfig, JwksConfig, ThrottleConfig
from auth.key_config import ApiKeyConfig, ApiKeysConfig
from auth.verifier import MAX_REFUSED
from core.errors import GatewayError
from core.exchange import Request
from core.metrics import Metrics
from core.section import FilePath

BAR_US = 20.0
ISSUER = "https://id.example"
ADDRESSES = 50
BIG_PADDING = 5_600
"""Bytes of a claim that make a token nearly as long as one may be."""


@dataclass
class Kind:
    """`bar`: whether it is to cost at most `BAR_US`."""

    name: str
    requests: Iterator[Request]
    authenticator: Authenticator
    bar: bool = True


class Mint:
    """Tokens of one issuer, and the file with its key."""

    def __init__(self, folder: Path) -> None:
        self._private = ec.generate_private_key(ec.SECP256R1())
        self._other = ec.generate_private_key(ec.SECP256R1())
        key = jwt.algorithms.ECAlgorithm.to_jwk(self._private.public_key(), as_dict=True)
        self.key_set = folder / "keys.json"
        self.key_set.write_text(json.dumps({"keys": [key | {"kid": "one"}]}))

    def token(self, kid: str = "one", *, forged: bool = False, **claims: object) -> bytes:
        now = int(time.time())
        good = {"iss": ISSUER, "aud": "api", "sub": "user-1", "exp": now + 3600, "iat": now - 60}
        key = self._other if forged else self._private
        return jwt.encode(good | claims, key, "ES256", {"kid": kid}).encode()


def make_authenticator(mint: Mint, key: bytes, failures: int) -> Authenticator:
    """`failures`: how often an address may fail at once."""
    jwks = JwksConfig(file=FilePath(str(mint.key_set)))
    entry = ApiKeyConfig(id="k", sha256=digest_of(key).hex(), tenant="acme")
    config = AuthConfig(
        issuers=(IssuerConfig(issuer=ISSUER, audiences=("api",), jwks=jwks),),
        api_keys=ApiKeysConfig(keys=(entry,)),
        throttle=ThrottleConfig(failures_burst=failures),
    )
    return Authenticator(config, Metrics.private())


def request(credential: bytes | None, address: int) -> Request:
    shown = () if credential is None else ((b"authorization", b"Bearer " + credential),)
    return Request(
        method="POST",
        path="/v1/chat/completions",
        query="",
        headers=((b"host", b"api.example"), (b"content-type", b"application/json"), *shown),
        body=b"",
        peer=f"192.0.2.{address}",
        version="1.1",
        received_at=0.0,
        complete_at=0.0,
    )


def make_kinds(mint: Mint) -> list[Kind]:
    key = make_key(bytes(ENTROPY_BYTES)).encode()
    usual = make_authenticator(mint, key, 1_000_000_000)
    strict = make_authenticator(mint, key, 1)

    def kind(name: str, *credentials: bytes | None, bar: bool = True) -> Kind:
        shown = [request(found, i % ADDRESSES) for i, found in enumerate(credentials)]
        return Kind(name, cycle(shown), usual, bar)

    expired = mint.token(exp=int(time.time()) - 3600)
    big = mint.token(exp=int(time.time()) - 3600, padding="x" * BIG_PADDING)
    # More than are remembered.
    numbers = range(1, MAX_REFUSED + 2)
    keys = [make_key(i.to_bytes(ENTROPY_BYTES, "big")).encode() for i in numbers]
    forged = [mint.token(forged=True, jti=str(i)) for i in numbers]
    unknown = [mint.token(str(i)) for i in numbers]
    throttled = kind("any, from an address that fails too often", mint.token(forged=True))
    throttled.authenticator = strict
    return [
        kind("a good token", mint.token(), bar=False),
        kind("a good API key", key, bar=False),
        kind("nothing", None),
        kind("no token at all", b"not-a-token"),
        kind("an expired token", expired),
        kind(f"an expired token of {len(big):,} bytes", big),
        kind("a wrong signature", mint.token(forged=True)),
        kind("a key id that nobody has", mint.token("two")),
        kind("an issuer that nobody trusts", mint.token(iss="https://other.example")),
        kind("an API key that nobody has, each another", *keys),
        kind("a mistyped API key", key[:-1] + b"-"),
        throttled,
        kind("a key id that nobody has, each another", *unknown, bar=False),
        kind("a wrong signature, each another", *forged, bar=False),
    ]


async def cost_us(kind: Kind, batch: int) -> float:
    """CPU microseconds for each."""
    authenticate = kind.authenticator.authenticate
    requests = list(islice(kind.requests, batch))
    started_s = time.process_time()
    for shown in requests:
        with suppress(GatewayError):
            await authenticate(shown)
    return (time.process_time() - started_s) / batch * 1e6


async def measure(kinds: Sequence[Kind], batch: int, rounds: int) -> bool:
    authenticators = {id(kind.authenticator): kind.authenticator for kind in kinds}.values()
    for authenticator in authenticators:
        await authenticator.start()
        while authenticator.ready() is not None:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)
    met = True
    try:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)  # as a worker does
        found: list[list[float]] = [[] for _ in kinds]
        for kind in kinds:
            await cost_us(kind, batch)
        for _ in range(rounds):
            for costs, kind in zip(found, kinds, strict=True):
                costs.append(await cost_us(kind, batch))
        for costs, kind in zip(found, kinds, strict=True):
            median = statistics.median(costs)
            met = met and not (kind.bar and median >= BAR_US)
            bar = f"; bar {BAR_US:g}" if kind.bar else ""
            print(f"{kind.name:42s} {median:5.1f} us ({min(costs):.1f} to {max(costs):.1f}{bar})")
    finally:
        for authenticator in authenticators:
            await authenticator.close()
    return met


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.tokens",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--batch", type=int, default=500, help="requests in each batch")
    parser.add_argument("--rounds", type=int, default=21)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        kinds = make_kinds(Mint(Path(name)))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return 0 if runner.run(measure(kinds, arguments.batch, arguments.rounds)) else 1


if __name__ == "__main__":
    sys.exit(main())
