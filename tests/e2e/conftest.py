"""An identity and two fake replicas for tests of the whole process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from running import Identity

from loadtest.replica import FakeReplica


@pytest.fixture(scope="session")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return Identity(tmp_path_factory.mktemp("identity"))


@pytest.fixture
async def replicas() -> AsyncIterator[list[FakeReplica]]:
    async with FakeReplica() as one, FakeReplica() as two:
        yield [one, two]
