from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import ConfigError
from core.metrics import Metrics
from proxy.serve import finder
from proxy.serve.__main__ import main
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


def test_check_says_what_it_means_and_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(finder, "AVAILABLE", True)
    monkeypatch.setattr(finder, "look_once", None)
    monkeypatch.setattr(finder, "Resolver", None)
    file = tmp_path / "headrace.yaml"
    file.write_text(
        'listen: {addresses: ["127.0.0.1:8080"], tls: off}\n'
        "auth: none\n"
        "workers: 1\n"
        "models: [{name: m}]\n"
        "discover: [{dns: vllm.test, port: 8000, model: m}]\n"
    )
    assert main(["check", "-c", str(file)]) == 0
    said = capsys.readouterr().out
    assert "discover: m: A and AAAA records of vllm.test, port 8000, http" in said
    file.write_text(file.read_text().replace("vllm.test", "vllm..test"))
    assert main(["check", "-c", str(file)]) != 0
    assert "$.discover[0].dns: expected a DNS name" in capsys.readouterr().err
