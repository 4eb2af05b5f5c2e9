from __future__ import annotations

from typing import get_args

import pytest

from proxy.request_config import Route
from proxy.surfaces.openai import OPENAI
from proxy.surfaces.registry import SURFACES, shape_at


def test_rules_about_bodies_can_name_every_path() -> None:
    assert get_args(Route) == tuple(SURFACES)


@pytest.mark.parametrize("path", list(SURFACES))
def test_errors_have_the_shape_of_their_path(path: str) -> None:
    assert shape_at(path) is SURFACES[path].shape
    assert SURFACES[path].upstream_path == path.encode()


def test_a_path_that_nobody_serves_has_openais_shape() -> None:
    assert shape_at("/v1/nothing") is OPENAI
