"""The demo's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from core.errors import ConfigError
from proxy.serve import demo_parts
from proxy.serve.config import load_config
from proxy.serve.config_warnings import warnings
from proxy.serve.demo_parts import MODEL, configuration, make_place


def test_the_configuration_is_valid_and_has_every_feature_on(tmp_path: Path) -> None:
    place = make_place(tmp_path, 0)
    document = configuration(
        place,
        "https://127.0.0.1:1/jwks.json",
        ["http://127.0.0.1:2", "http://127.0.0.1:3"],
        "unix:///s",
    )
    place.config.write_text(yaml.safe_dump(document))
    config = load_config(str(place.config))
    assert config.auth != "none"
    assert config.listen.tls != "off"
    assert config.limits is not None
    assert config.admin is not None
    assert [replica.model for replica in config.replicas] == [MODEL, MODEL]
    assert config.models[0].tokenizer is not None
    assert warnings(config) == []


def test_a_port_may_be_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_parts, "Issuer", lambda *_: None)  # an RSA key takes long to make
    assert make_place(tmp_path, 18_443).port == 18_443


async def test_a_folder_that_is_too_long_for_a_socket_is_named() -> None:
    with pytest.raises(ConfigError, match=r"xx/valkey.sock is too long .* set TMPDIR to a shorter"):
        async with demo_parts._valkey(Path("/") / ("x" * 95)):
            pass
