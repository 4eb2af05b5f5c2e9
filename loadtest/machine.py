"""What a run ran on, for whoever wants to repeat it. Performs (reads the system)."""

from __future__ import annotations

import os
import platform
import ssl
from importlib import metadata
from pathlib import Path
from typing import Any

_LIBRARIES = ("headrace", "uvloop", "httptools", "msgspec", "pyjwt")


def machine() -> dict[str, Any]:
    usable = getattr(os, "sched_getaffinity", None)
    return {
        "system": platform.platform(),
        "processor": _first_value("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": os.cpu_count(),
        "cores_usable": len(usable(0)) if usable else os.cpu_count(),
        "memory": _first_value("/proc/meminfo", "MemTotal"),
        "load_average": list(os.getloadavg()),
    }


def versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "openssl": ssl.OPENSSL_VERSION,
        **{name: metadata.version(name) for name in _LIBRARIES},
    }


def waited_for_core_s() -> float:
    """How long this thread could have run and had no core, ever (Linux; 0 elsewhere)."""
    try:
        _, waited_ns, _ = Path("/proc/thread-self/schedstat").read_text().split()
    except (OSError, ValueError):
        return 0.0
    return int(waited_ns) / 1e9


def _first_value(path: str, name: str) -> str:
    """The value of the first line `name : value`; "" where there is no such file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
    lines = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")
