"""Where the control socket of a gateway is.

In `run_dir`, or else a file of its own for each configuration file, in the folder that the system
keeps for such things, if this user may write there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

from core import document
from core.errors import ConfigError
from core.loading import read

LONGEST_PATH = 96
"""Bytes: the path of a Unix socket has at most 107, and while it is made a pid is added."""
NO_PLACE = (
    "there is no control socket: set `run_dir` to a folder that the gateway may write "
    "(neither $XDG_RUNTIME_DIR nor /run is one), and restart it"
)


def state_folder(run_dir: str | None) -> str | None:
    """Where to keep what is to outlive the process: systemd's folder (the first, if there are
    several), or else `run_dir`."""
    return os.environ.get("STATE_DIRECTORY", "").partition(":")[0] or run_dir


def control_path(run_dir: str | None, path: str, environment: Mapping[str, str]) -> str | None:
    """The socket of the gateway that runs the configuration file `path`; None: there is no place
    for one. Raises ConfigError when it would be too long."""
    if run_dir is not None:
        place = os.path.join(run_dir, "control.sock")
        if len(os.fsencode(place)) > LONGEST_PATH:
            raise ConfigError(
                f"$.run_dir: {run_dir} is too long for the path of a socket; give one of at most "
                f"{LONGEST_PATH - len('/control.sock')} bytes"
            )
        return place
    digest = hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()[:12]
    for folder in (environment.get("XDG_RUNTIME_DIR", ""), "/run"):
        place = os.path.join(folder, f"headrace-{digest}.sock")
        fits = os.path.isabs(folder) and len(os.fsencode(place)) <= LONGEST_PATH
        if fits and os.access(folder, os.W_OK | os.X_OK):
            return place
    return None


def control_path_of(path: str, environment: Mapping[str, str]) -> str | None:
    """As `control_path`, with what the file says of `run_dir`, whatever else is wrong in it.
    Raises ConfigError if it cannot be read at all."""
    try:
        parsed = document.parse(read(path).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration {path} is not UTF-8 text") from error
    given = parsed.get("run_dir") if isinstance(parsed, dict) else None
    folder = None
    if isinstance(given, str) and given:
        folder = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(path)), given))
    return control_path(folder, path, environment)
