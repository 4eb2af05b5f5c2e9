"""Where an issuer says that its key set is (OpenID Connect Discovery 1.0, section 4). Pure."""

from __future__ import annotations

import orjson

from auth.urls import url_fault

_WELL_KNOWN = "/.well-known/openid-configuration"


class DiscoveryError(Exception):
    """The document is not the metadata of this issuer. `str()` names the fault."""


def metadata_url(issuer: str) -> str:
    return issuer.rstrip("/") + _WELL_KNOWN


def key_set_url(document: bytes, issuer: str, allow_http: bool) -> str:
    """The `jwks_uri` of the metadata, held to the rules for a URL that the operator writes. The
    document must name `issuer` exactly (section 4.3), so that nobody speaks for another one. Raises
    DiscoveryError."""
    try:
        content = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise DiscoveryError("the metadata is not JSON") from error
    if not isinstance(content, dict) or content.get("issuer") != issuer:
        raise DiscoveryError("the metadata is that of another issuer")
    url = content.get("jwks_uri")
    if not isinstance(url, str):
        raise DiscoveryError("the metadata has no `jwks_uri`")
    if fault := url_fault(url, allow_http):
        raise DiscoveryError(f"the metadata's `jwks_uri`: {fault}")
    return url
