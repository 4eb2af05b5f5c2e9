"""Tests here trust whom they name, never whom the machine does."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def no_authorities_of_the_machine() -> Iterator[None]:
    """To read them costs 30 ms for each context."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
            patched.setenv(name, os.devnull)
        yield
