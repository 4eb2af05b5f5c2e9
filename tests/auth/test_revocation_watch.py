from __future__ import annotations

from pathlib import Path

import pytest

from auth.key_copy import KeyCopy
from auth.revocation import Revoked
from auth.revocation_watch import Listed, ListUnavailable, RevocationWatch
from core.metrics import Metrics

NOW = 1_700_000_000.0


class FakeList:
    def __init__(self, *names: str) -> None:
        self.listed: Listed | None = Listed(1, frozenset(names))
        self.fault: str | None = None
        self.asked: list[int | None] = []

    def read(self, version: int | None) -> Listed | None:
        self.asked.append(version)
        if self.fault is not None:
            raise ListUnavailable(self.fault)
        if self.listed is None or self.listed.version == version:
            return None
        return self.listed


class World:
    def __init__(self, folder: Path) -> None:
        self.list = FakeList("key:a")
        self.metrics = Metrics.private()
        self.folder = str(folder)
        self.revoked = Revoked()

    def watch(self) -> RevocationWatch:
        self.revoked = Revoked(frozenset({"key:always"}))
        return RevocationWatch(
            self.list,
            self.revoked,
            always=self.revoked.names,
            copy=KeyCopy(self.folder, "revocations"),
            workers=self.metrics.gauge("headrace_revocations_unavailable", ""),
            wall_clock=lambda: NOW,
        )

    def names(self) -> set[str]:
        return set(self.revoked.names) - {"key:always"}

    def unavailable(self) -> float:
        return self.metrics.value("headrace_revocations_unavailable")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_it_is_as_the_list_is(world: World) -> None:
    watch = world.watch()
    await watch.start()
    assert world.names() == {"key:a"}
    world.list.listed = Listed(2, frozenset({"jti:b"}))
    await watch.look()
    assert world.names() == {"jti:b"}
    assert "key:always" in world.revoked.names
    await watch.look()
    assert world.list.asked == [None, 1, 2]
    await watch.close()


async def test_what_is_known_holds_while_the_list_is_away(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    watch = world.watch()
    await watch.start()
    world.list.fault = "refused"
    for _ in range(3):
        await watch.look()
    assert world.names() == {"key:a"}
    assert world.unavailable() == 1
    assert caplog.text.count("revocations cannot be followed: refused") == 1
    world.list.fault = None
    world.list.listed = None  # flushed
    await watch.look()
    assert (world.names(), world.unavailable()) == ({"key:a"}, 0)
    await watch.close()


async def test_a_restart_without_the_list_goes_on_with_the_copy(world: World) -> None:
    watch = world.watch()
    await watch.start()
    await watch.close()
    world.list.fault = "refused"
    again = world.watch()
    await again.start()
    assert world.names() == {"key:a"}
    assert world.unavailable() == 1
    await again.close()
    assert world.unavailable() == 0
