"""A connection to a replica with its doubles."""

from __future__ import annotations

import pytest
from replica_wire import Wire


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture(scope="session")
def new_wire() -> type[Wire]:
    return Wire
