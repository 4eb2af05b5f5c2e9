"""What a request's caller may claim of the replicas. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.claim import Claim
from core.exchange import Request
from core.principal import Principal

SESSION_HEADER = b"x-session-id"
_SESSION_FIELDS = ("prompt_cache_key", "user")
_LONGEST_SESSION = 256


def claim_of(principal: Principal, request: Request, document: Mapping[str, Any]) -> Claim:
    """`document` is the request's body. Its session is what the header says, or else OpenAI's
    `prompt_cache_key`, or else `user`: a hint, so that what is no text is no session."""
    header = request.header(SESSION_HEADER)
    session: object = ""
    if header is not None:
        session = header.decode("latin-1")
    else:
        for name in _SESSION_FIELDS:
            if (session := document.get(name)) is not None:
                break
    if not isinstance(session, str):
        session = ""
    return Claim(
        principal.tenant, principal.priority, len(request.body), session[:_LONGEST_SESSION]
    )
