from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from core.errors import ConfigError
from proxy.serve.supervise.run_dir import LONGEST_PATH, control_path, control_path_of


def test_where_it_is_told_to_be() -> None:
    assert control_path("/run/gateway", "/etc/h.yaml", {}) == "/run/gateway/control.sock"


def test_each_configuration_has_its_own_by_default() -> None:
    folder = tempfile.gettempdir()  # pytest's may be too long for the path of a socket
    environment = {"XDG_RUNTIME_DIR": folder}
    one, other, again = (
        control_path(None, path, environment)
        for path in ("/etc/a.yaml", "/etc/b.yaml", "/etc/a.yaml")
    )
    assert one == again
    assert one is not None
    assert one != other
    assert os.path.dirname(one) == folder


def test_relative_paths_are_the_same_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    monkeypatch.chdir(tmp_path)
    absolute = control_path(None, str(tmp_path / "h.yaml"), environment)
    assert control_path(None, "h.yaml", environment) == absolute


def test_a_folder_that_is_too_long_is_named() -> None:
    folder = "/" + "a" * LONGEST_PATH
    with pytest.raises(ConfigError, match=r"^\$\.run_dir: /a+ is too long .* at most \d+ bytes$"):
        control_path(folder, "/etc/h.yaml", {})


@pytest.mark.parametrize("rest", ["", "listen: 5\nmodels: wrong\n"])
def test_the_file_says_where_whatever_else_is_wrong_in_it(tmp_path: Path, rest: str) -> None:
    path = tmp_path / "h.yaml"
    path.write_text(f"run_dir: run\n{rest}")
    assert control_path_of(str(path), {}) == str(tmp_path / "run" / "control.sock")


def test_what_is_no_folder_leaves_the_default(tmp_path: Path) -> None:
    path = tmp_path / "h.yaml"
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    for text in ("", "run_dir: [1]", "- 1"):
        path.write_text(text)
        assert control_path_of(str(path), environment) == control_path(None, str(path), environment)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "h.yaml"
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        control_path_of(str(path), {})
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        control_path_of(str(path), {})
    path.write_text("a: [")
    with pytest.raises(ConfigError, match="line 1"):
        control_path_of(str(path), {})
