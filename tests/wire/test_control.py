"""Channels, the control socket, and sockets that change hands: with real Unix sockets."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.errors import ConfigError
from proxy.listen.address import Address
from proxy.listen.sockets import Sockets, bind_all
from proxy.serve.supervise.channel import Channel
from proxy.serve.supervise.control import ControlSocket, NobodyThere, Visitor, visit
from proxy.serve.supervise.messages import (
    HandedOver,
    Message,
    Outcome,
    Ready,
    Rejected,
    Reload,
    Stage,
    TakeOver,
    Yield,
)
from proxy.serve.supervise.replace import CannotReplace, Predecessor, give
from proxy.serve.supervise.service_manager import notify


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    one, other = Channel.pair()
    yield one, other
    one.close()
    other.close()


def test_messages_go_both_ways(pair: tuple[Channel, Channel]) -> None:
    one, other = pair
    assert one.receive() == []
    one.send(Reload("/a"))
    one.send(Ready())
    assert other.wait(5) == [Reload("/a"), Ready()]
    other.send(Outcome(2))
    assert one.wait(5) == [Outcome(2)]
    assert not one.ended


def test_what_does_not_fit_waits_and_blocks_nobody(pair: tuple[Channel, Channel]) -> None:
    one, other = pair
    messages = [Stage(number, bytes(300_000), "/etc/h.yaml") for number in range(4)]
    for message in messages:
        one.send(message)
    assert one.waits_to_send
    found: list[Message] = []
    while len(found) < 4:
        found += other.receive()
        one.flush()
    assert found == messages
    assert not one.waits_to_send


def test_what_was_said_before_the_end_is_still_heard(pair: tuple[Channel, Channel]) -> None:
    one, other = pair
    one.send(Ready())
    one.close()
    one.close()
    assert other.receive() == [Ready()]
    assert other.ended
    other.send(Ready())  # to nobody
    assert other.wait(5) == []


def test_nonsense_ends_it() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    with theirs:
        theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert channel.receive() == []
        assert channel.ended
    channel.close()


def test_nobody_waits_for_ever(pair: tuple[Channel, Channel]) -> None:
    assert pair[0].wait(0.01) == []
    assert not pair[0].ended


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlSocket]:
    made = ControlSocket(str(tmp_path / "run" / "control.sock"))
    yield made
    made.close(remove=True)


def admitted(control: ControlSocket) -> tuple[Visitor, Visitor]:
    """A visitor as it sees itself, and as the supervisor does."""
    outside = visit(control.path, takes_descriptors=True)
    control.admit()
    return outside, control.visitors[-1]


def test_the_control_socket_is_its_users_alone(control: ControlSocket) -> None:
    assert stat.S_IMODE(os.stat(control.path).st_mode) == 0o600
    outside, inside = admitted(control)
    assert (outside.pid, inside.pid) == (os.getpid(), os.getpid())
    outside.channel.send(TakeOver())
    assert control.hear(inside) == [TakeOver()]
    outside.channel.close()
    assert control.hear(inside) == []
    assert inside.channel.ended
    control.forget(inside)
    control.forget(inside)
    assert control.visitors == []


def test_nobody_there(control: ControlSocket, tmp_path: Path) -> None:
    control.close(remove=False)
    for path in (control.path, str(tmp_path / "none")):
        with pytest.raises(NobodyThere, match=f"no gateway answers at {path}"):
            visit(path)


def test_without_descriptors_visitors_are_turned_away(control: ControlSocket) -> None:
    outside = [visit(control.path) for _ in range(2)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(control.fileno()))
        control.admit()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)
    assert control.visitors == []
    assert select.select([control], [], [], 0)[0] == []  # nobody waits any more
    for one in outside:
        assert one.channel.wait(5) == []
        assert one.channel.ended
        one.channel.close()
    admitted(control)[0].channel.close()


def test_a_successor_takes_the_place_in_one_step(control: ControlSocket) -> None:
    newer = ControlSocket(control.path)
    visit(control.path).channel.close()
    newer.admit()
    assert len(newer.visitors) == 1
    control.close(remove=True)  # not the newer one's file
    assert os.path.exists(control.path)
    newer.close(remove=True)
    assert not os.path.exists(control.path)
    assert os.listdir(os.path.dirname(control.path)) == []


def test_a_place_that_cannot_be_had_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^\$\.run_dir: cannot make .*/file/control\.sock: .*"):
        ControlSocket(str(tmp_path / "file" / "control.sock"))


class OldOne(threading.Thread):
    """A gateway that is asked for its sockets; `messages` are what it hears."""

    def __init__(self, control: ControlSocket, sockets: Sockets) -> None:
        super().__init__()
        self.control = control
        self.sockets = sockets
        self.refusal = ""
        self.heard: list[object] = []
        self.start()

    def run(self) -> None:
        while not self.control.visitors:
            self.control.admit()
        (visitor,) = self.control.visitors
        while not visitor.channel.ended:
            for message in visitor.channel.wait(5):
                self.heard.append(message)
                if not isinstance(message, TakeOver):
                    continue
                if self.refusal:
                    visitor.channel.send(Rejected(self.refusal))
                else:
                    give(visitor, self.sockets, b"secret", {"A a": ("10.0.0.1",)})


def test_sockets_change_hands(control: ControlSocket, tmp_path: Path) -> None:
    unix = Address(path=str(tmp_path / "s"))
    sockets = bind_all([Address("127.0.0.1", 0), unix], Address("127.0.0.1", 0))
    old = OldOne(control, sockets)
    predecessor = Predecessor(visit(control.path, takes_descriptors=True))
    assert (predecessor.secret, predecessor.found) == (b"secret", {"A a": ("10.0.0.1",)})
    assert predecessor.pid == os.getpid()
    tcp, given_unix, admin = predecessor.sockets
    taken = bind_all([unix, tcp.address], None, predecessor.sockets)
    assert [bound.address for bound in taken.listen] == [unix, tcp.address]
    sockets.disown([str(unix)])
    sockets.close()
    sockets.remove_files()
    assert os.path.exists(unix.path)  # it has another owner now
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(unix.path)
    socket.create_connection(("127.0.0.1", tcp.address.port)).close()
    with pytest.raises(ConnectionRefusedError):  # which nobody wanted
        socket.create_connection(("127.0.0.1", admin.address.port)).close()
    assert given_unix.socket.getblocking() is False
    assert not os.get_inheritable(tcp.socket.fileno())
    taken.own_all()
    predecessor.end([str(bound.address) for bound in taken.all()])
    taken.close()
    taken.remove_files()
    assert not os.path.exists(unix.path)
    old.join()
    assert old.heard == [TakeOver(), Yield((f"unix:{unix.path}", str(tcp.address)))]


def test_a_successor_that_fails_leaves_everything(control: ControlSocket, tmp_path: Path) -> None:
    unix = Address(path=str(tmp_path / "s"))
    sockets = bind_all([unix], None)
    old = OldOne(control, sockets)
    predecessor = Predecessor(visit(control.path, takes_descriptors=True))
    taken = bind_all([unix], None, predecessor.sockets)
    taken.close()
    taken.remove_files()
    predecessor.close()
    old.join()
    assert old.heard == [TakeOver()]
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(unix.path)
    sockets.close()
    sockets.remove_files()
    assert not os.path.exists(unix.path)


def test_a_new_address_that_is_taken_leaves_everything(control: ControlSocket) -> None:
    sockets = bind_all([Address("127.0.0.1", 0)], None)
    old = OldOne(control, sockets)
    predecessor = Predecessor(visit(control.path, takes_descriptors=True))
    with socket.create_server(("127.0.0.1", 0)) as other:
        wanted = [predecessor.sockets[0].address, Address("127.0.0.1", other.getsockname()[1])]
        with pytest.raises(ConfigError, match="it is in use by"):
            bind_all(wanted, None, predecessor.sockets)
    predecessor.close()
    old.join()
    socket.create_connection(("127.0.0.1", sockets.listen[0].address.port)).close()
    sockets.close()


def test_a_gateway_that_does_not_give_way(control: ControlSocket) -> None:
    sockets = bind_all([], None)
    old = OldOne(control, sockets)
    old.refusal = "pid 5 is just taking its place"
    with pytest.raises(CannotReplace, match="pid 5 is just taking its place"):
        Predecessor(visit(control.path, takes_descriptors=True))
    old.join()


def test_one_that_leaves_in_the_middle(control: ControlSocket) -> None:
    outside = visit(control.path, takes_descriptors=True)
    control.admit()
    control.forget(control.visitors[0])
    with pytest.raises(CannotReplace, match="did not hand its sockets over"):
        Predecessor(outside)


def test_no_descriptor_is_left_behind(pair: tuple[Channel, Channel]) -> None:
    one, other = socket.socketpair()
    sender, receiver = Channel(one), Channel(other, takes_descriptors=True)
    read, write = os.pipe()
    sender.send(HandedOver(b""), write)
    assert receiver.wait(5) == [HandedOver(b"")]
    os.close(write)
    receiver.close()
    assert os.read(read, 1) == b""  # its last writer is gone
    os.close(read)
    sender.close()


@pytest.mark.parametrize("abstract", [False, True])
def test_the_service_manager_is_told(tmp_path: Path, abstract: bool) -> None:
    name = f"headrace-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name if abstract else name)
        manager.settimeout(5)
        notify("READY=1", {"NOTIFY_SOCKET": f"@{name}" if abstract else name})
        assert manager.recv(100) == b"READY=1"
    notify("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    notify("READY=1", {})
