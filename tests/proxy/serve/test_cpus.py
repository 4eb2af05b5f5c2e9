from __future__ import annotations

import os
from pathlib import Path

import pytest

from proxy.serve.cpus import usable_cpus


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("max 100000", 8),
        ("250000 100000", 3),
        ("10000 100000", 1),
        ("9900000 100000", 8),
        ("nonsense", 8),
    ],
)
def test_a_containers_share_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, count: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    (tmp_path / "cpu.max").write_text(text + "\n")
    assert usable_cpus(tmp_path) == count


def test_without_a_share_all_that_it_may_run_on(tmp_path: Path) -> None:
    assert usable_cpus(tmp_path) == len(os.sched_getaffinity(0))
