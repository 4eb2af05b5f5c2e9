"""Bind the listening sockets, once, before the workers are forked.

All workers share them: measured on six rolling replacements, one shared socket lost no
connection, SO_REUSEPORT per worker did. Sockets are not inheritable, which is about `exec`: a
fork keeps them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from core.errors import ConfigError
from proxy.listen.address import Address
from proxy.listen.socket_holder import holder_of

BACKLOG = 4096
FEWEST_DESCRIPTORS = 64
"""A worker that does nothing yet has some twenty open."""


@dataclass(frozen=True, slots=True)
class BoundSocket:
    """A listening, non-blocking socket. `address` has the real port when 0 was asked for."""

    address: Address
    socket: socket.socket
    file: tuple[int, int] = (0, 0)
    """Inode and modification time of a Unix socket's file, so that only our own is removed at the
    end (the inode alone is soon used again)."""


@dataclass(slots=True)
class Sockets:
    """All listening sockets: those for clients in the order of the configuration, and the
    admin's (None: no admin listener)."""

    listen: tuple[BoundSocket, ...]
    admin: BoundSocket | None = None
    _closed: bool = field(default=False, repr=False)
    _foreign: set[str] = field(default_factory=set, repr=False)

    def close(self) -> None:
        """Close this process's copies."""
        if not self._closed:
            self._closed = True
            for bound in self.all():
                bound.socket.close()

    def all(self) -> tuple[BoundSocket, ...]:
        return self.listen if self.admin is None else (*self.listen, self.admin)

    def disown(self, addresses: Iterable[str]) -> None:
        """Another process serves these now, and removes their files."""
        self._foreign.update(addresses)

    def own_all(self) -> None:
        """Those that came from another process are ours now."""
        self._foreign.clear()

    def remove_files(self) -> None:
        """Remove the files of our Unix sockets; for the process that owns them, at its end."""
        for bound in self.all():
            with contextlib.suppress(OSError):
                if (
                    bound.address.is_unix
                    and str(bound.address) not in self._foreign
                    and _file_identity(bound.address.path) == bound.file
                ):
                    os.unlink(bound.address.path)


def bind_all(
    listen: Sequence[Address], admin: Address | None, inherited: Sequence[BoundSocket] = ()
) -> Sockets:
    """Bind everything or nothing. Raises ConfigError with one line for each address that fails.

    `inherited`: bound by another process, which owns them until `own_all`. Those that nobody
    wants are closed.
    """
    given = {bound.address: bound for bound in inherited}
    bound: list[BoundSocket] = []
    faults: list[str] = []
    for address in [*listen, *([admin] if admin else [])]:
        try:
            bound.append(given[address] if address in given else bind(address))
        except ConfigError as error:
            faults.append(str(error))
    foreign = {str(address) for address in given}
    if faults:
        Sockets(tuple(bound), _foreign=foreign).close()
        Sockets(tuple(bound), _foreign=foreign).remove_files()
        raise ConfigError("\n".join(faults))
    for left in inherited:
        if left not in bound:
            left.socket.close()
    return Sockets(tuple(bound[: len(listen)]), bound[-1] if admin else None, _foreign=foreign)


def bind(address: Address) -> BoundSocket:
    """Raises ConfigError that names the address, the fault and, when known, who holds it."""
    try:
        return _bind_unix(address) if address.is_unix else _bind_tcp(address)
    except OSError as error:
        raise ConfigError(f"cannot listen on {address}: {_reason(error, address)}") from error


def notice_vanished(listener: socket.socket, patience_s: float) -> None:
    """Have the kernel give up connections from `listener` whose client is gone without a word: one
    that acknowledges nothing for so long, whether anything is sent to it or not. Accepted sockets
    inherit that (tcp(7)). Small streams alone would never notice: they fit into the send buffer."""
    if listener.family == socket.AF_UNIX:
        return
    idle_s = max(1, int(patience_s / 2))
    options = [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, idle_s // 4)),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * patience_s)),
    ]
    with contextlib.suppress(OSError):  # it is closed already, or the kernel knows no such thing
        for option in options:
            listener.setsockopt(*option)


def connection_limit() -> int:
    """How many client connections one process may hold: half of its file descriptors, since each
    may need a second one upstream."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 524_288 if soft == resource.RLIM_INFINITY else max(1, soft // 2)


def raise_descriptor_limit() -> None:
    """Allow this process and its children as many file descriptors as the system lets them.
    Raises ConfigError when those are too few to serve with."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FEWEST_DESCRIPTORS:
        raise ConfigError(
            f"this process may open {soft} files and sockets, and needs {FEWEST_DESCRIPTORS} to "
            "serve at all and two for each client: raise the limit (`ulimit -n`, systemd's "
            "LimitNOFILE=)"
        )


def _bind_tcp(address: Address) -> BoundSocket:
    found = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, place = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # So that 0.0.0.0 and [::] can both be given, and mean the same on every system.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(place)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return BoundSocket(Address(address.host, listener.getsockname()[1]), listener)


def _bind_unix(address: Address) -> BoundSocket:
    _remove_stale(address)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(address.path)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        file = _file_identity(address.path)
    except BaseException:
        listener.close()
        raise
    return BoundSocket(address, listener, file)


def _file_identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_ino, status.st_mtime_ns


def _remove_stale(address: Address) -> None:
    """Remove a socket file that a dead process left; keep it when somebody answers."""
    try:
        mode = os.stat(address.path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "a file that is not a socket is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address.path)
        except ConnectionRefusedError:
            os.unlink(address.path)
        except (TimeoutError, BlockingIOError):
            raise OSError(errno.EADDRINUSE, "in use") from None
        else:
            raise OSError(errno.EADDRINUSE, "in use")


def _reason(error: OSError, address: Address) -> str:
    if isinstance(error, socket.gaierror):
        return "the host name is not known"
    if error.errno == errno.EADDRINUSE:
        holder = holder_of(address)
        return f"it is in use by {holder}" if holder else "it is in use by another process"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this host has no such address"
    if error.errno == errno.EACCES and not address.is_unix:
        return "this user may not bind it (ports below 1024 need CAP_NET_BIND_SERVICE)"
    return (error.strerror or str(error)).lower()
