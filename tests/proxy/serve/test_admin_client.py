"""What the command line says when there is nobody to ask (with one: tests/wire/test_budget.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.listen.address import Address
from proxy.serve.admin_client import CannotAsk, fetch


def test_nobody_there_is_said_with_the_address(tmp_path: Path) -> None:
    address = Address(path=str(tmp_path / "none.sock"))
    with pytest.raises(CannotAsk, match=r"none\.sock"):
        fetch(address, "/metrics")
