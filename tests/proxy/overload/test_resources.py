"""Control groups as files in a folder, and this very process."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.overload.resources import (
    MemoryGroup,
    Resources,
    find_memory_group,
    give_back_memory,
    own_resident_bytes,
)


def group_v2(folder: Path, limit: str, used: int, cache: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(limit + "\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\nactive_file 7\n")


def found(root: Path, membership: str) -> MemoryGroup:
    group = find_memory_group(root, membership)
    assert group is not None
    return group


def test_version_2(tmp_path: Path) -> None:
    group_v2(tmp_path / "a" / "b", "1000", 700, 200)
    group = found(tmp_path, "0::/a/b\n")
    assert (group.limit_bytes(), group.used_bytes()) == (1000, 500)


def test_the_nearest_group_with_a_limit_counts(tmp_path: Path) -> None:
    group_v2(tmp_path / "a", "1000", 700, 0)
    group_v2(tmp_path / "a" / "b", "max", 5, 0)
    assert found(tmp_path, "0::/a/b/c\n").used_bytes() == 700


def test_a_container_sees_its_group_as_the_root(tmp_path: Path) -> None:
    """As with Docker: the path is the host's, the folder mounted is the container's own."""
    group_v2(tmp_path, "1000", 10, 20)
    assert found(tmp_path, "0::/docker/0123\n").used_bytes() == 0


def test_version_1(tmp_path: Path) -> None:
    folder = tmp_path / "memory" / "x"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("4096\n")
    (folder / "memory.usage_in_bytes").write_text("2000\n")
    (folder / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 500\n")
    group = found(tmp_path, "5:cpu,cpuacct:/y\n4:memory:/x\n")
    assert (group.limit_bytes(), group.used_bytes()) == (4096, 1500)
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert find_memory_group(tmp_path, "4:memory:/x\n") is None


@pytest.mark.parametrize("membership", ["", "0::/\n", "3:cpu:/a\n"])
def test_no_limit(tmp_path: Path, membership: str) -> None:
    assert find_memory_group(tmp_path, membership) is None


def test_this_process() -> None:
    resources = Resources(lambda: 0, lambda: 0)
    before = resources.descriptors()
    assert 0 < before < 1
    files = [open("/dev/null", "rb") for _ in range(50)]  # noqa: SIM115
    assert resources.descriptors() > before
    for file in files:
        file.close()
    assert resources.descriptors() == before
    assert 0 <= resources.memory() < 1
    assert own_resident_bytes() > 1_000_000


def test_memory_is_given_back_or_nothing_happens() -> None:
    kept = [bytearray(100_000) for _ in range(500)]
    del kept[::2]
    before = own_resident_bytes()
    give_back_memory()
    assert own_resident_bytes() <= before
