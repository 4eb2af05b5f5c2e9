"""Whose request it is, and of which session."""

from __future__ import annotations

from typing import Any

import pytest

from core.claim import Claim
from core.exchange import Header, Request
from core.principal import Principal
from proxy.claims import claim_of


def request(*headers: Header) -> Request:
    return Request("POST", "/", "", headers, b"12345", "127.0.0.1", "1.1", 0.0, 0.0)


@pytest.mark.parametrize(
    ("headers", "document", "session"),
    [
        ([(b"x-session-id", b"s1")], {"user": "u", "prompt_cache_key": "k"}, "s1"),
        ([], {"user": "u", "prompt_cache_key": "k"}, "k"),
        ([], {"user": "u"}, "u"),
        ([], {"user": ["u"]}, ""),
        ([], {"prompt_cache_key": None, "user": "u" * 1000}, "u" * 256),
        ([], {}, ""),
    ],
)
def test_the_session_is_the_clients_word_for_it(
    headers: list[Header], document: dict[str, Any], session: str
) -> None:
    claim = claim_of(Principal("t", priority=3), request(*headers), document)
    assert claim == Claim("t", 3, 5, session)
