"""The section `tracing`."""

from __future__ import annotations

import msgspec
import pytest

from proxy.tracing.config import TracingConfig


@pytest.mark.parametrize("endpoint", ["collector:4318", "ftp://c/v1/traces", "http://", ""])
def test_an_endpoint_is_a_url(endpoint: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"endpoint": endpoint}, TracingConfig)


def test_one_exchange_in_a_hundred_by_default() -> None:
    config = msgspec.convert({"endpoint": "http://collector:4318/v1/traces"}, TracingConfig)
    assert config.sample_ratio == 0.01
