from __future__ import annotations

import os
from pathlib import Path

from proxy.serve.supervise.watch import Identity, Watch, identity, look_at


class Looks:
    """What is seen, set by hand."""

    def __init__(self, **sizes: int) -> None:
        self.now = seen(**sizes)
        self.watch = Watch(lambda _: dict(self.now))
        self.watch.expect(self.now)

    def then(self, **sizes: int) -> list[str]:
        self.now = seen(**sizes)
        return self.watch.changed()


def seen(**sizes: int) -> dict[str, Identity]:
    return {name: (name, 1, 2, 3, size) if size else None for name, size in sizes.items()}


def test_what_stays_is_no_change() -> None:
    looks = Looks(a=1, b=0)
    assert looks.then(a=1, b=0) == looks.then(a=1, b=0) == []


def test_a_change_must_last_for_two_looks() -> None:
    looks = Looks(a=1, b=1)
    assert looks.then(a=2, b=1) == []
    assert looks.then(a=2, b=1) == ["a"]


def test_what_is_still_being_written_is_waited_for() -> None:
    looks = Looks(a=1)
    assert [looks.then(a=size) for size in (2, 3, 4, 5)] == [[], [], [], []]
    assert looks.then(a=5) == ["a"]


def test_what_went_and_came_back_is_no_change() -> None:
    looks = Looks(a=1)
    assert looks.then(a=0) == looks.then(a=1) == looks.then(a=1) == []
    assert looks.then(a=0) == []
    assert looks.then(a=0) == ["a"]


def test_it_is_told_until_somebody_has_read_it() -> None:
    looks = Looks(a=1)
    assert [looks.then(a=2) for _ in range(3)] == [[], ["a"], ["a"]]
    looks.watch.expect(looks.now)
    assert looks.then(a=2) == []


def test_a_file_is_what_it_is_and_not_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "f"
    assert identity(str(path)) is None
    path.write_text("one")
    before = identity(str(path))
    other = tmp_path / "g"
    other.write_text("one")
    os.replace(other, path)
    after = identity(str(path))
    assert None not in (before, after)
    assert before != after


def test_a_turned_link_above_the_file_is_a_change(tmp_path: Path) -> None:
    """As Kubernetes mounts ConfigMaps: `file -> ..data/file`, `..data -> ..one`."""
    for name in ("..one", "..two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("same")
        os.utime(tmp_path / name / "file", ns=(1, 1))
    (tmp_path / "..data").symlink_to("..one")
    (tmp_path / "file").symlink_to("..data/file")
    path = str(tmp_path / "file")
    watch = Watch()
    watch.expect(look_at([path]))
    assert watch.changed() == []
    (tmp_path / "..next").symlink_to("..two")
    os.replace(tmp_path / "..next", tmp_path / "..data")
    assert watch.changed() == []
    assert watch.changed() == [path]
