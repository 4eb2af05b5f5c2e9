from __future__ import annotations

import pytest

from core.errors import ConfigError
from core.metrics import Metrics
from proxy.serve import finder
from proxy.serve.discover_config import DiscoverConfig, DnsConfig
from proxy.serve.finder import Finder, check_library


def test_without_its_library_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finder, "AVAILABLE", True)
    check_library()
    monkeypatch.setattr(finder, "AVAILABLE", False)
    with pytest.raises(ConfigError, match=r"^\$\.discover: needs .*headrace\[dns\]"):
        check_library()


async def test_nothing_is_asked_before_somebody_wants_to_hear() -> None:
    looking = Finder(Metrics.private())
    looking.use([DiscoverConfig(dns="vllm.test", port=8000, model="m")], DnsConfig())
    assert "AAAA vllm.test" in repr(looking)
    looking.use([], DnsConfig())
    assert repr(looking) == "<Finder []>"
    await looking.close()
