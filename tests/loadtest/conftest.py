"""Many tests here look at the same samples, whose intervals cost some 15 ms for each metric."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import pytest

from loadtest import compare, gate, stats


@pytest.fixture(scope="package", autouse=True)
def resample_once() -> Iterator[None]:
    """What `stats.replicates` drew is remembered: the same for the same samples and seed. And it
    draws less often."""
    drawn = functools.cache(stats.replicates)

    def replicates(
        windows: Sequence[Sequence[float]], quantiles: Sequence[float], seed: int
    ) -> list[list[float]]:
        return drawn(tuple(map(tuple, windows)), tuple(quantiles), seed)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stats, "_REPLICATES", (60, 120))
        patched.setattr(gate, "_REPLICATES", 250)
        patched.setattr(compare, "_PAIRS", 1000)
        patched.setattr(stats, "replicates", replicates)
        yield
