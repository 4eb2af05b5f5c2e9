"""Puts a ring of ticket keys into OpenSSL, which Python's `ssl` has no call for.

OpenSSL asks a callback for the keys of each ticket it makes or opens
(SSL_CTX_set_tlsext_ticket_key_evp_cb, OpenSSL 3). It is reached with ctypes in the very libssl
that `_ssl` is linked to. Where that cannot be done, `library` says why, and OpenSSL's own key
stays in use: made with the context, shared by the workers forked later, and never rotated.

`proxy/tls/server.py` tries the ring with handshakes in memory before it is used.
"""

from __future__ import annotations

import _ssl
import ctypes
import os
import ssl
import sys
from collections.abc import Iterable
from typing import NamedTuple

from core.clock import Clock
from proxy.tls.ticket_keys import OPEN, FileKeys, TicketKey, TicketKeys

_OCTET_STRING, _UTF8_STRING = 5, 4  # OSSL_PARAM(3)
_NO, _YES, _RENEW = 0, 1, 2
_NAME_BYTES = _IV_BYTES = 16


class _Param(ctypes.Structure):
    """OSSL_PARAM(3)."""

    _fields_ = (
        ("key", ctypes.c_char_p),
        ("data_type", ctypes.c_uint),
        ("data", ctypes.c_void_p),
        ("data_size", ctypes.c_size_t),
        ("return_size", ctypes.c_size_t),
    )


class _Ticket(NamedTuple):
    """What the callback gets beside the connection: pointers, and 1 to encrypt or 0 to decrypt."""

    name: int
    iv: int
    cipher: int
    mac: int
    encrypt: int


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_void_p,) * 5, ctypes.c_int)


class Unreachable(Exception):
    """OpenSSL cannot be reached; `str()` says why."""


class OpenSsl:
    """The functions needed of libssl and libcrypto. Raises Unreachable."""

    def __init__(self) -> None:
        if sys.implementation.name != "cpython":
            raise Unreachable("this is not CPython")
        if ssl.OPENSSL_VERSION_INFO[0] != 3:
            raise Unreachable(f"Python uses {ssl.OPENSSL_VERSION}, not OpenSSL 3")
        try:
            library = ctypes.CDLL(_ssl.__file__)
            self.set_callback = library.SSL_CTX_set_tlsext_ticket_key_evp_cb
            self.set_policy = library.SSL_CTX_set_session_id_context
            self.context_of = library.SSL_get_SSL_CTX
            self.encrypt = library.EVP_EncryptInit_ex
            self.decrypt = library.EVP_DecryptInit_ex
            self.set_mac = library.EVP_MAC_CTX_set_params
            cipher = library.EVP_aes_256_cbc
            version = library.OpenSSL_version_num
        except (AttributeError, OSError) as error:
            raise Unreachable(f"its OpenSSL is not a shared library: {error}") from error
        pointer = ctypes.c_void_p
        self.set_callback.argtypes = (pointer, _Callback)
        self.set_policy.argtypes = (pointer, ctypes.c_char_p, ctypes.c_uint)
        self.context_of.argtypes = (pointer,)
        self.context_of.restype = pointer
        self.encrypt.argtypes = self.decrypt.argtypes = (pointer,) * 5
        self.set_mac.argtypes = (pointer, pointer)
        cipher.restype = pointer
        version.restype = ctypes.c_ulong
        if version() != ssl.OPENSSL_VERSION_NUMBER:
            raise Unreachable("it is linked to another OpenSSL than was found")
        self.aes_256_cbc = cipher()

    def __repr__(self) -> str:
        return f"<OpenSsl {ssl.OPENSSL_VERSION}>"


class _Key:
    """A ticket key as OpenSSL takes it. The parameters point into buffers, which are kept here:
    with a freed one tickets would silently stop to resume."""

    __slots__ = ("_digest", "_mac", "aes", "name", "params")

    def __init__(self, key: TicketKey) -> None:
        self.name = key.name
        self.aes = ctypes.create_string_buffer(key.aes, len(key.aes))
        self._mac = ctypes.create_string_buffer(key.mac, len(key.mac))
        self._digest = ctypes.create_string_buffer(b"SHA256")
        mac, digest = ctypes.addressof(self._mac), ctypes.addressof(self._digest)
        self.params = (_Param * 3)(
            _Param(b"key", _OCTET_STRING, mac, len(key.mac), 0),
            _Param(b"digest", _UTF8_STRING, digest, len(b"SHA256"), 0),
            _Param(),
        )

    def __repr__(self) -> str:
        return f"<_Key {self.name.hex()}>"


class TicketRing:
    """The keys of the tickets of one context, found anew whenever their period changes.

    `wall_clock`: Unix seconds. Must live as long as any connection of the context.
    """

    def __init__(self, openssl: OpenSsl, wall_clock: Clock) -> None:
        self._openssl = openssl
        self._clock = wall_clock
        self._keys: TicketKeys = FileKeys([])
        self._policy = OPEN
        self._period: int | None = None
        self._inner: frozenset[int] = frozenset()
        self._by_name: dict[bytes, _Key] = {}
        self._current = self._useless = _Key(TicketKey.from_bytes(os.urandom(80)))
        self._callback = _Callback(self._on_ticket)

    def __repr__(self) -> str:
        return f"<TicketRing {self._keys!r} period={self._period}>"

    def install(self, context: ssl.SSLContext) -> None:
        self._openssl.set_callback(_pointer(context), self._callback)

    def use(
        self,
        keys: TicketKeys,
        policy: bytes,
        outer: ssl.SSLContext,
        inner: Iterable[ssl.SSLContext],
    ) -> None:
        """From now on use `keys`. `policy`: at most 32 bytes.

        `inner` are the contexts that a connection may have been switched to while its handshake
        went on. A handshake that began before this call ends in an older one, whose policy may be
        another: its ticket is made with a key that opens nothing.
        """
        contexts = [outer, *inner]
        for context in contexts:
            # Sessions of another policy are refused by their context, too. (From 3.13 on Python
            # gives each connection one of its own, and then the keys alone tell them apart.)
            self._openssl.set_policy(_pointer(context), policy or b"open", len(policy or b"open"))
        self._inner = frozenset(map(_pointer, contexts))
        self._keys = keys
        self._policy = policy
        self._period = None

    def _on_ticket(self, connection: int, *ticket: int) -> int:
        """Called by OpenSSL in a handshake, with the SSL and the fields of `_Ticket`. What is
        raised in a callback is printed and lost, and nothing of it may stop a handshake: without a
        key there is a full one next time."""
        try:
            period = self._keys.period_at(self._clock())
            if period != self._period:
                self._turn(period)
            return self._answer(connection, _Ticket(*ticket))
        except Exception:  # noqa: BLE001 - called by C code, which cannot take an exception
            return _NO

    def _turn(self, period: int) -> None:
        ring = [_Key(key) for key in self._keys.ring(period, self._policy)]
        self._current = ring[0]
        self._by_name = {key.name: key for key in ring}
        self._period = period

    def _answer(self, connection: int, ticket: _Ticket) -> int:
        openssl = self._openssl
        if ticket.encrypt:
            known = openssl.context_of(connection) in self._inner
            key, start, answer = self._current if known else self._useless, openssl.encrypt, _YES
            ctypes.memmove(ticket.name, key.name, _NAME_BYTES)
            ctypes.memmove(ticket.iv, os.urandom(_IV_BYTES), _IV_BYTES)
        else:
            found = self._by_name.get(ctypes.string_at(ticket.name, _NAME_BYTES))
            if found is None:
                return _NO
            key, start, answer = found, openssl.decrypt, _YES if found is self._current else _RENEW
        done = (
            start(ticket.cipher, openssl.aes_256_cbc, None, key.aes, ticket.iv) == 1
            and openssl.set_mac(ticket.mac, key.params) == 1
        )
        return answer if done else _NO


def _pointer(context: ssl.SSLContext) -> int:
    """The SSL_CTX of a context: the first field after the header of the Python object."""
    found = ctypes.c_void_p.from_address(id(context) + object.__basicsize__).value
    if not found:
        raise Unreachable("the context has no SSL_CTX where it was expected")
    return found
