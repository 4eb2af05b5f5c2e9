"""Tries a ring of ticket keys with handshakes in memory, before any client depends on it."""

from __future__ import annotations

import os
import ssl

from proxy.tls.config import CertificateConfig
from proxy.tls.context import MemoryClient, load_chain, new_context
from proxy.tls.ticket_keys import OPEN, ROTATION_S, DerivedKeys
from proxy.tls.ticket_ring import OpenSsl, TicketRing, Unreachable

_ROTATIONS = (0, 0, 1, 3)
_RESUMED = [False, True, True, False]


def try_ring(openssl: OpenSsl, pair: CertificateConfig) -> None:
    """Raises Unreachable or ssl.SSLError unless a ticket resumes before and after a rotation, and
    no longer when its key is retired."""
    now = 0.0
    inner = new_context((), ssl.TLSVersion.TLSv1_3)
    outer = new_context((), ssl.TLSVersion.TLSv1_3)
    load_chain(inner, pair)

    def switch(connection: ssl.SSLObject, name: str | None, context: object) -> None:
        connection.context = inner

    outer.sni_callback = switch
    outer.ring = inner.ring = TicketRing(openssl, lambda: now)
    outer.ring.install(outer)
    outer.ring.use(DerivedKeys(os.urandom(32)), OPEN, outer, [inner])
    client = MemoryClient()
    resumed = []
    for rotations in _ROTATIONS:
        now = rotations * ROTATION_S
        resumed.append(client.shake_hands(outer))
    if resumed != _RESUMED:
        raise Unreachable(f"tickets resume when they should not, or do not: {resumed}")
