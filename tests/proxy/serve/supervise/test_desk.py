from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from proxy.serve.supervise.control import ControlSocket, Visitor
from proxy.serve.supervise.desk import TAKE_OVER_S, Desk
from proxy.serve.supervise.messages import (
    DrainReplica,
    Message,
    Outcome,
    Rejected,
    Reload,
    TakeOver,
    Yield,
)
from proxy.serve.supervise.reloader import Answer


class FakeChannel:
    def __init__(self) -> None:
        self.coming: list[Message] = []
        self.sent: list[Message] = []
        self.ended = False

    def send(self, message: Message) -> None:
        self.sent.append(message)


class FakeControl:
    def __init__(self) -> None:
        self.forgotten: list[Visitor] = []

    def hear(self, visitor: Visitor) -> list[Message]:
        channel = cast(FakeChannel, visitor.channel)
        coming, channel.coming = channel.coming, []
        return coming

    def forget(self, visitor: Visitor) -> None:
        self.forgotten.append(visitor)


class House:
    """A desk, and what was asked of the gateway behind it."""

    def __init__(self, path: str) -> None:
        self.control = FakeControl()
        self.wanted: list[Answer] = []
        self.drained: list[bool] = []
        self.given: list[int] = []
        self.gave_way: list[tuple[int, Sequence[str]]] = []
        self.now = 1000.0
        self.desk = Desk(
            cast(ControlSocket, self.control),
            path,
            want=lambda why, answer: self.wanted.append(answer),
            drain=self.drain,
            give=lambda visitor: self.given.append(visitor.pid),
            give_way=lambda pid, kept: self.gave_way.append((pid, kept)),
            clock=lambda: self.now,
        )

    def drain(self, replica_id: str, on: bool) -> str:
        if replica_id != "gpu-1":
            return f"no replica has the id {replica_id}"
        self.drained.append(on)
        return ""

    def says(self, visitor: Visitor, *messages: Message) -> list[Message]:
        """What the visitor is answered."""
        channel = cast(FakeChannel, visitor.channel)
        channel.coming += messages
        channel.sent.clear()
        self.desk.attend(visitor)
        return list(channel.sent)

    def leaves(self, visitor: Visitor) -> None:
        cast(FakeChannel, visitor.channel).ended = True
        self.desk.attend(visitor)


def somebody(pid: int) -> Visitor:
    return Visitor(cast(Any, FakeChannel()), pid)


def test_a_reload_is_answered_when_it_is_over() -> None:
    house, visitor = House("/etc/headrace.yaml"), somebody(7)
    assert house.says(visitor, Reload("/etc/headrace.yaml")) == []
    (answer,) = house.wanted
    answer(Outcome(2, "applied"))
    assert cast(FakeChannel, visitor.channel).sent == [Outcome(2, "applied")]


def test_the_same_file_by_another_path_is_meant(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("")
    (tmp_path / "link.yaml").symlink_to("a.yaml")
    house = House(str(tmp_path / "a.yaml"))
    assert house.says(somebody(7), Reload(str(tmp_path / "link.yaml"))) == []
    assert len(house.wanted) == 1


def test_another_configuration_is_not_meant() -> None:
    house = House("/etc/headrace.yaml")
    (rejected,) = house.says(somebody(7), Reload("/etc/other.yaml"))
    assert isinstance(rejected, Rejected)
    assert rejected.reason.endswith("runs /etc/headrace.yaml")
    assert house.wanted == []


def test_a_replica_is_drained_by_a_reload() -> None:
    house, visitor = House("/c"), somebody(7)
    assert house.says(visitor, DrainReplica("/c", "gpu-1")) == []
    assert house.says(visitor, DrainReplica("/c", "gpu-1", drain=False)) == []
    assert (house.drained, len(house.wanted)) == ([True, False], 2)
    unknown = house.says(visitor, DrainReplica("/c", "gpu-9"))
    assert unknown == [Rejected("no replica has the id gpu-9")]
    (elsewhere,) = house.says(visitor, DrainReplica("/other", "gpu-1"))
    assert isinstance(elsewhere, Rejected)
    assert (house.drained, len(house.wanted)) == ([True, False], 2)


def test_one_takes_over_at_a_time() -> None:
    house, first, second = House("/c"), somebody(7), somebody(8)
    house.says(first, TakeOver())
    assert house.says(second, TakeOver()) == [Rejected("pid 7 is just taking its place")]
    assert house.given == [7]
    house.leaves(first)
    assert house.control.forgotten == [first]
    house.says(second, TakeOver())
    assert house.given == [7, 8]


def test_one_that_takes_the_sockets_and_stays_silent_is_forgotten() -> None:
    house, first, second = House("/c"), somebody(7), somebody(8)
    house.says(first, TakeOver())
    house.now += TAKE_OVER_S - 1
    assert house.says(second, TakeOver()) == [Rejected("pid 7 is just taking its place")]
    house.now += 1
    assert house.says(second, TakeOver()) == []
    assert (house.given, house.control.forgotten) == ([7, 8], [first])
    house.says(first, Yield(()))
    assert house.gave_way == []


def test_only_who_was_given_the_sockets_may_have_us_yield() -> None:
    house, taker, other = House("/c"), somebody(7), somebody(8)
    house.says(taker, TakeOver())
    house.says(other, Yield(()))
    assert house.gave_way == []
    house.says(taker, Yield(("127.0.0.1:1",)))
    assert house.gave_way == [(7, ("127.0.0.1:1",))]


def test_what_can_be_no_path_is_another_file() -> None:
    house, visitor = House("/etc/headrace.yaml"), somebody(7)
    (answer,) = house.says(visitor, Reload("/etc/\0headrace.yaml"))
    assert isinstance(answer, Rejected)
    assert house.wanted == []
