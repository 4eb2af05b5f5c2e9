"""A revision that is not there."""

from __future__ import annotations

import pytest

from loadtest.builds import CannotBuild, two_gateways


def test_a_revision_that_is_not_there_is_named() -> None:
    with (
        pytest.raises(CannotBuild, match="no-such-revision"),
        two_gateways("no-such-revision", None),
    ):
        pass
