"""Real vLLM replicas for the tests here (`tests/support/vllm_engine.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from running import Process
from vllm_engine import PYTHON, Engine, configuration, make_model

# `make test-vllm` says where vLLM is; `make test` is free of it.
collect_ignore_glob = ["*"] if PYTHON is None else []


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("vllm") / "model")


@pytest.fixture(scope="session")
def engines(model: Path) -> Iterator[list[Engine]]:
    found = [Engine(model), Engine(model, "--max-num-queued-reqs", "4")]
    try:
        for engine in found:
            engine.start()
        for engine in found:
            engine.wait_ready()
        yield found
    finally:
        for engine in found:
            engine.kill()


@pytest.fixture(scope="session")
def gateway(engines: list[Engine]) -> Iterator[Process]:
    with Process(configuration(engines)) as gateway:
        yield gateway
