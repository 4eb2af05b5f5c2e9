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
def spare(model: Path) -> Iterator[Engine]:
    engine = Engine(model)
    yield engine
    engine.kill()


@pytest.fixture(scope="session")
def engines(model: Path, spare: Engine) -> Iterator[list[Engine]]:
    """Two that live as long as the tests; the second one queues four requests at most."""
    found = [Engine(model), Engine(model, "--max-num-queued-reqs", "4")]
    try:
        for engine in (*found, spare):
            engine.start()
        for engine in found:
            engine.wait_ready()
        yield found
    finally:
        for engine in found:
            engine.kill()


@pytest.fixture
def victim(
    model: Path, spare: Engine, engines: list[Engine], request: pytest.FixtureRequest
) -> Iterator[Engine]:
    """One that the test may end as it likes; its options are the fixture's parameter."""
    options = getattr(request, "param", ())
    engine = Engine(model, *options) if options else spare
    try:
        if not engine.alive:
            engine.kill()  # what may be left of it
            engine.start()
        engine.wait_ready()
        yield engine
    finally:
        if engine is not spare:
            engine.kill()


@pytest.fixture(scope="session")
def gateway(engines: list[Engine]) -> Iterator[Process]:
    with Process(configuration(engines)) as gateway:
        yield gateway
