"""What a request's caller may claim of the replicas. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.claim import Claim
from core.exchange import Request
from core.principal import Principal

SESSION_HEADER = b"x-session-id"
_LONGEST_SESSION = 256


def claim_of(principal: Principal, request: Request, document: Mapping[str, Any]) -> Claim:
    """`document` is the request's body. Its session is what the header says, or else OpenAI's
    `prompt_cache_key`, or else `user`: a hint, so that what is no text is no session."""
    header = request.header(SESSION_HEADER)
    session: object
    if header is not None:
        session = header.decode("latin-1")
    elif (session := document.get("prompt_cache_key")) is None:
        session = document.get("user")
    session = session[:_LONGEST_SESSION] if isinstance(session, str) else ""
    return Claim(principal.tenant, principal.priority, len(request.body), session)
