"""Binding: real sockets, and sentences that say who is in the way."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path

import pytest

from core.errors import ConfigError
from proxy.listen.address import Address, parse_address
from proxy.listen.socket_holder import holder_of
from proxy.listen.sockets import bind, bind_all, connection_limit, notice_vanished

LOOPBACK = Address(host="127.0.0.1")
SELF = f"pid {os.getpid()}"


def test_the_real_port_is_told_and_connections_queue() -> None:
    sockets = bind_all([LOOPBACK, LOOPBACK], LOOPBACK)
    try:
        assert len({bound.address.port for bound in sockets.all()} - {0}) == 3
        assert sockets.admin is not None
        for bound in sockets.all():
            assert bound.socket.getblocking() is False
            assert bound.socket.get_inheritable() is False
            socket.create_connection(("127.0.0.1", bound.address.port), 1).close()
    finally:
        sockets.close()
    sockets.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", sockets.listen[0].address.port), 1).close()


def test_a_taken_port_is_named_with_its_holder_and_nothing_stays_bound() -> None:
    taken = bind(LOOPBACK)
    free = bind(LOOPBACK)
    free.socket.close()
    with taken.socket, pytest.raises(ConfigError) as caught:
        bind_all([free.address, taken.address, taken.address], None)
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"cannot listen on {taken.address}: it is in use by ")
    assert SELF in lines[0]
    bind(free.address).socket.close()


def test_ipv4_and_ipv6_share_a_port() -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    first = bind(Address(host="0.0.0.0"))
    with first.socket:
        try:
            second = bind(Address(host="::", port=first.address.port))
        except ConfigError as error:
            pytest.skip(str(error))
        second.socket.close()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("192.0.2.1:80", "this host has no such address"),
        ("no-such-host.invalid:80", "the host name is not known"),
        ("unix:/nowhere/at/all.sock", "no such file or directory"),
    ],
)
def test_what_cannot_be_bound(text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen on {text}: {fault}"):
        bind(parse_address(text))


def test_a_unix_socket_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    address = Address(path=str(tmp_path / "s"))
    bind(address).socket.close()
    assert os.path.exists(address.path)
    sockets = bind_all([address], None)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address.path)
    sockets.close()
    sockets.remove_files()
    assert not os.path.exists(address.path)


def test_a_unix_socket_in_use_is_left_alone(tmp_path: Path) -> None:
    address = Address(path=str(tmp_path / "s"))
    with bind(address).socket, pytest.raises(ConfigError, match=f"in use by .*{SELF}"):
        bind(address)
    assert os.path.exists(address.path)


def test_another_file_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("precious")
    with pytest.raises(ConfigError, match="not a socket"):
        bind(Address(path=str(tmp_path / "s")))
    assert (tmp_path / "s").read_text() == "precious"


def test_the_file_of_a_successor_is_not_removed(tmp_path: Path) -> None:
    address = Address(path=str(tmp_path / "s"))
    ours = bind_all([address], None)
    ours.close()
    theirs = bind_all([address], None)
    os.utime(address.path, (1, 1))  # clocks of file systems are coarse
    ours.remove_files()
    assert os.path.exists(address.path)
    theirs.close()


def test_nobody_holds_a_free_port() -> None:
    free = bind(LOOPBACK)
    free.socket.close()
    assert holder_of(free.address) is None


def test_connections_are_limited_to_half_of_the_descriptors() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert connection_limit() == (524_288 if soft == resource.RLIM_INFINITY else soft // 2)


def test_accepted_connections_inherit_how_the_vanished_are_noticed() -> None:
    bound = bind(LOOPBACK)
    try:
        notice_vanished(bound.socket, 20.0)
        with socket.create_connection(("127.0.0.1", bound.address.port)):
            bound.socket.setblocking(True)
            accepted, _ = bound.socket.accept()
            with accepted:
                tcp = socket.IPPROTO_TCP
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                assert accepted.getsockopt(tcp, socket.TCP_USER_TIMEOUT) == 20_000
                assert accepted.getsockopt(tcp, socket.TCP_KEEPIDLE) == 10
    finally:
        bound.socket.close()
    notice_vanished(bound.socket, 20.0)  # too late, and no harm
