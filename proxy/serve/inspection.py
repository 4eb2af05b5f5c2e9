"""The command `token inspect`: who a credential is, what it may do, or why it is refused."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator

import msgspec

from auth.access import Access
from auth.api_key import looks_like_key
from auth.authenticator import Authenticator
from auth.token import TokenRefused, read_token
from core.errors import GatewayError, Unauthenticated, Unavailable
from core.exchange import Request
from core.metrics import Metrics
from core.principal import Principal
from proxy.catalog import Catalog
from proxy.serve.config import Config, load_config
from proxy.serve.revocations import shared_revocations
from proxy.serve.supervise.run_dir import state_folder
from ratelimit.plan import Who, make_plan

REFUSED = 1
_ROUTES = ("/v1/chat/completions", "/v1/completions")
_WAIT_S = 15.0


def token(arguments: argparse.Namespace) -> int:
    """Verify a credential as the gateway would, and print what it amounts to; never its signature.
    Exit status 1 when it is refused, or when the model that was asked about is not for it. Raises
    ConfigError."""
    config = load_config(arguments.config)
    given = sys.stdin.read() if arguments.token == "-" else arguments.token
    credential = given.strip().removeprefix("Bearer ").strip().encode("utf-8", "replace")
    for line in shown(credential):
        sys.stdout.write(line + "\n")
    if config.auth == "none":
        sys.stdout.write("accepted: `auth: none` accepts everybody, as the tenant anonymous\n")
        return 0
    try:
        principal = asyncio.run(identify(config, credential))
    except Unauthenticated as error:
        sys.stdout.write(f"refused: {error.fault}\n")
        return REFUSED
    except Unavailable as error:
        sys.stdout.write(f"cannot tell: {error.message}\n")
        return REFUSED
    for line in amounts_to(principal):
        sys.stdout.write(line + "\n")
    names = [arguments.model] if arguments.model else [model.name for model in config.models]
    allowed = False
    for name in names:
        for line in uses(config, principal, name):
            allowed = allowed or line.startswith("may use")
            sys.stdout.write(line + "\n")
    return 0 if allowed else REFUSED


def shown(credential: bytes) -> Iterator[str]:
    """What a credential says of itself, whether it holds or not."""
    if looks_like_key(credential):
        yield "an API key"
        return
    try:
        read = read_token(credential)
    except TokenRefused:
        yield "neither an API key nor a token that can be read"
        return
    yield "a token; what it says of itself:"
    yield f"  header: {json.dumps(read.header)}"
    yield f"  claims: {json.dumps(read.claims)}"


async def identify(config: Config, credential: bytes) -> Principal:
    """Whose credential it is, with key sets fetched, or else with those on disk. Raises
    Unauthenticated or Unavailable."""
    auth, folder = config.auth, state_folder(config.run_dir)
    assert auth != "none"
    revocations = shared_revocations(config)
    request = Request(
        method="POST",
        path=_ROUTES[0],
        query="",
        headers=((b"authorization", b"Bearer " + credential),),
        body=b"",
        peer="",
        version="1.1",
        received_at=0.0,
        complete_at=0.0,
    )
    # Without a folder: this user's copies would be of no use to the gateway.
    bare = msgspec.structs.replace(auth, cache_dir=None)
    fetching = Authenticator(bare, Metrics.private(), revocations=revocations)
    try:
        await fetching.restore()
        return await asyncio.wait_for(fetching.authenticate(request), _WAIT_S)
    except (Unavailable, TimeoutError):
        if folder is None and auth.cache_dir is None:
            raise Unavailable("no key set can be fetched.") from None
    finally:
        await fetching.close()
    kept = Authenticator(auth, Metrics.private(), copies=folder, revocations=revocations)
    try:
        await kept.restore()
        return await kept.authenticate(request)
    finally:
        await kept.close()


def amounts_to(principal: Principal) -> Iterator[str]:
    yield "accepted:"
    named = {
        "organisation": principal.organisation,
        "tenant": principal.tenant,
        "user": principal.subject,
        "key": principal.key,
        "tier": principal.tier,
        "groups": ", ".join(sorted(principal.groups)),
        "priority": str(principal.priority or ""),
        "models": "all" if principal.models is None else ", ".join(sorted(principal.models)),
    }
    for name, value in named.items():
        if value:
            yield f"  {name}: {value}"


def uses(config: Config, principal: Principal, name: str) -> Iterator[str]:
    """Where the caller may use a model, and the limits that it meets there."""
    rules = () if config.auth == "none" else config.auth.rules
    catalog = Catalog(config.models, 0, Access(rules))
    for route in _ROUTES:
        try:
            model = catalog.resolve(name, principal, route)
        except GatewayError as error:
            yield f"{error.reason} at {route}: {error.message}"
            continue
        yield f"may use {name} at {route}; limits:"
        found = config.named_limits
        limits = () if found is None else found.rules
        own = dict(principal.limits)
        buckets = make_plan(limits, Who(principal, model, route)).buckets
        for rule in (bucket.rule for bucket in buckets):
            limit, burst = own.get(rule.name, (rule.limit, rule.burst))
            window = "at once" if rule.unit == "concurrent" else f"per {rule.window}"
            size = "" if burst is None else f", up to {burst} in a burst"
            per = f", for each {' and '.join(rule.per)}" if rule.per else ", for all together"
            shadow = " (shadow: refuses nothing)" if rule.shadow else ""
            yield f"  {rule.name}: {limit} {rule.unit} {window}{size}{per}{shadow}"
        if not buckets:
            yield "  none"
