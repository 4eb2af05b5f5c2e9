"""The section `auth`: whose tokens are trusted, and how their keys are had."""

from __future__ import annotations

import math
from typing import Literal

from auth.certificates import CertificateConfig
from auth.key_config import ApiKeysConfig
from auth.urls import url_fault
from core.section import Contradictions, FilePath, OutputPath, Section

ASYMMETRIC_ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
DEFAULT_ALGORITHMS = ("RS256", "ES256", "EdDSA", "PS256")
ABSENT = "absent"
"""In `types`: a token without the header `typ` is accepted."""

MAX_ISSUERS = 16
MAX_LEEWAY_S = 60.0
MIN_STALE_FOR_S = 24 * 3600.0


def _raise(faults: list[tuple[str, str]]) -> None:
    if faults:
        raise Contradictions(faults)


class JwksConfig(Section):
    """Where an issuer's key set is: at `url`, in `file`, or else where the issuer's metadata say.

    `refresh_s`: it is fetched anew about that often. `cool_down_s`: the least time between two
    fetches once a burst of three is used up, whatever they were for and however they ended.
    `stale_for_s`: how long the last good set is used while none can be fetched. `timeout_s`: one
    fetch as a whole. `ca`: a PEM file of the authorities to trust for `url` (None: the system's).
    `allow_http`: the URL may be plain HTTP or on a link-local address (loopback always may).
    """

    url: str | None = None
    file: FilePath | None = None
    ca: FilePath | None = None
    allow_http: bool = False
    refresh_s: float = 300.0
    cool_down_s: float = 10.0
    stale_for_s: float = MIN_STALE_FOR_S
    timeout_s: float = 5.0

    def __post_init__(self) -> None:
        faults = []
        if self.url is not None and self.file is not None:
            faults.append(("", "expected at most one of `url` and `file`"))
        if self.url is not None and (fault := url_fault(self.url, self.allow_http)):
            faults.append((".url", fault))
        if not self.cool_down_s > 0:
            faults.append((".cool_down_s", "expected more than 0"))
        if not self.refresh_s >= self.cool_down_s:
            faults.append((".refresh_s", "expected at least `cool_down_s`"))
        if not self.stale_for_s >= MIN_STALE_FOR_S:
            faults.append((".stale_for_s", f"expected at least {MIN_STALE_FOR_S:.0f} (24 hours)"))
        if not 0 < self.timeout_s <= 60:
            faults.append((".timeout_s", "expected more than 0 and at most 60"))
        _raise(faults)


class ClaimsConfig(Section):
    """Which claims become which part of the principal.

    A name is looked up as it stands and then as a dotted path (`realm.org`). `tenant` must be
    there, or else `tenant_fallback`. `tenant_prefix` keeps tenants of different issuers apart.
    A token without the `models` claim may use all models, or none (`models_when_absent`). `limits`
    is an object of own figures, by the names of rules: a number, or `{limit, burst}`. `priority` is
    a whole number from -1000 to 1000, of which the lowest comes first; without the claim it is 0.
    """

    tenant: str = "sub"
    tenant_fallback: str | None = None
    tenant_prefix: str = ""
    subject: str = "sub"
    organisation: str | None = None
    tier: str | None = None
    groups: str | None = None
    models: str | None = None
    models_when_absent: Literal["all", "none"] = "all"
    limits: str | None = None
    priority: str | None = None

    def __post_init__(self) -> None:
        names = (
            "tenant",
            "tenant_fallback",
            "subject",
            "organisation",
            "tier",
            "groups",
            "models",
            "limits",
            "priority",
        )
        _raise(
            [
                (f".{name}", "expected the name of a claim, got empty text")
                for name in names
                if getattr(self, name) == ""
            ]
        )


class IssuerConfig(Section):
    """One trusted issuer of tokens.

    `issuer` and `audiences` are compared exactly (RFC 7519 sections 4.1.1, 4.1.3). `types` are
    the accepted values of the header `typ` (RFC 8725 section 3.11), `absent` for none at all.
    `required_claims` must be there, with any value but null. `leeway_s` allows for clocks that
    differ. `max_lifetime_s`: a token that expires later than that from now is refused (None: no
    limit).
    """

    issuer: str
    audiences: tuple[str, ...]
    jwks: JwksConfig = JwksConfig()
    algorithms: tuple[str, ...] = DEFAULT_ALGORITHMS
    types: tuple[str, ...] = ("at+jwt", "JWT", ABSENT)
    claims: ClaimsConfig = ClaimsConfig()
    required_claims: tuple[str, ...] = ()
    leeway_s: float = 30.0
    max_lifetime_s: float | None = None

    def __post_init__(self) -> None:
        faults = []
        if not self.issuer:
            faults.append((".issuer", "expected the value of the claim `iss`, got empty text"))
        elif self.is_discovered and (fault := url_fault(self.issuer, self.jwks.allow_http)):
            sentence = f"{fault}, where its metadata are; or give `jwks` a `url` or a `file`"
            faults.append((".issuer", sentence))
        if not self.audiences or "" in self.audiences:
            faults.append((".audiences", "expected at least one, none of them empty"))
        if not self.algorithms:
            faults.append((".algorithms", "expected at least one"))
        for index, name in enumerate(self.algorithms):
            if name not in ASYMMETRIC_ALGORITHMS:
                allowed = ", ".join(ASYMMETRIC_ALGORITHMS)
                sentence = f"expected one of {allowed}; got {name!r}"
                faults.append((f".algorithms[{index}]", sentence))
        if not self.types:
            faults.append((".types", "expected at least one"))
        if not 0 <= self.leeway_s <= MAX_LEEWAY_S:
            faults.append((".leeway_s", f"expected 0 to {MAX_LEEWAY_S:.0f}"))
        if self.max_lifetime_s is not None and not self.max_lifetime_s > 0:
            faults.append((".max_lifetime_s", "expected more than 0"))
        _raise(faults)

    @property
    def is_discovered(self) -> bool:
        """Whether the issuer itself tells where its key set is."""
        return self.jwks.url is None and self.jwks.file is None


class ThrottleConfig(Section):
    """Token buckets for each client address, in each worker; None: no limit.

    `requests_per_s`: whatever the credential, before it is looked at. `failures_per_minute`: while
    an address has used these up, only credentials that are known to be good are accepted from it.
    """

    requests_per_s: float | None = None
    requests_burst: int = 100
    failures_per_minute: float | None = 120.0
    failures_burst: int = 120

    def __post_init__(self) -> None:
        faults = [
            (f".{name}", "expected more than 0")
            for name in ("requests_per_s", "failures_per_minute")
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf
        ]
        faults += [
            (f".{name}", "expected at least 1")
            for name in ("requests_burst", "failures_burst")
            if getattr(self, name) < 1
        ]
        _raise(faults)


class AccessRule(Section):
    """Lets callers use models: those of `tenants`, of `tiers`, in one of `groups`; where several
    lists are given, one must be in each. `models` and `routes`: what it is about (none: all).
    """

    models: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (self.tenants or self.tiers or self.groups):
            raise ValueError("expected `tenants`, `tiers` or `groups`: whom it lets in")
        faults = []
        for index, route in enumerate(self.routes):
            if not route.startswith("/"):
                faults.append((f".routes[{index}]", "expected a path that begins with /"))
        _raise(faults)


class RevocationsConfig(Section):
    """Credentials that count no longer. `file`: names, one in each line. `redis`: follow the list
    in the Redis of the limits, which `headrace revoke` changes for all gateways.
    """

    file: FilePath | None = None
    redis: bool = False


class AuthConfig(Section):
    """Callers show a JSON Web Token of one of `issuers`, one of `api_keys`, or, where they show
    neither, one of `client_certificates`.

    `remembered_tokens`: how many verified tokens are kept, so that each costs its signature once.
    `cache_dir`: a folder for the last good key set of each issuer, so that a restart while an
    issuer is down serves. `rules`: a model that one of them is about is for those alone whom one
    lets in.
    """

    issuers: tuple[IssuerConfig, ...] = ()
    api_keys: ApiKeysConfig | None = None
    client_certificates: tuple[CertificateConfig, ...] = ()
    throttle: ThrottleConfig = ThrottleConfig()
    remembered_tokens: int = 16384
    cache_dir: OutputPath | None = None
    rules: tuple[AccessRule, ...] = ()
    revocations: RevocationsConfig = RevocationsConfig()

    def __post_init__(self) -> None:
        faults = []
        if len(self.issuers) > MAX_ISSUERS:
            faults.append((".issuers", f"expected at most {MAX_ISSUERS}"))
        if not self.issuers and self.api_keys is None and not self.client_certificates:
            faults.append(("", "expected `issuers`, `api_keys` or `client_certificates`"))
        names = [issuer.issuer for issuer in self.issuers]
        for index, name in enumerate(names):
            if name in names[:index]:
                faults.append((f".issuers[{index}].issuer", f"{name!r} is given twice"))
        if not 0 <= self.remembered_tokens <= 1_000_000:
            faults.append((".remembered_tokens", "expected 0 to 1000000"))
        _raise(faults)
