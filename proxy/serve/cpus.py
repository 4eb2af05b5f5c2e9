"""How many processors this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CONTROL_GROUP = Path("/sys/fs/cgroup")


def usable_cpus(control_group: Path = _CONTROL_GROUP) -> int:
    """Those that it may run on, or as many as its container's time is worth (cpu.max of cgroup
    v2), if that is less. At least 1."""
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = (control_group / "cpu.max").read_text().split()
        worth = math.ceil(int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):  # there is none, or no limit ("max")
        worth = count
    return max(1, min(count, worth))
