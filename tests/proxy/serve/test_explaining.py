"""Questions to the admin listener that cannot be answered."""

from __future__ import annotations

import json

import pytest

from core.loading import convert
from core.metrics import Metrics
from proxy.serve.app import prepare
from proxy.serve.config import Config
from proxy.serve.explaining import Explainer
from routing.config import RoutingConfig
from routing.router import Router


class Nobody:
    def candidates(self, model: str) -> tuple[()]:
        return ()

    def load(self, replica_id: str) -> None:
        return None


@pytest.fixture(scope="module")
def explainer() -> Explainer:
    document = {
        "listen": {"addresses": ["127.0.0.1:0"], "tls": "off"},
        "auth": "none",
        "models": [{"name": "m"}, {"name": "lora", "adapter_of": "m"}],
        "replicas": [{"url": "http://127.0.0.1:1", "model": "m"}],
    }
    prepared = prepare(convert(document, Config, "/"))
    router = Router(RoutingConfig(), Nobody(), Metrics.private(), lambda: 1.0)
    return Explainer(lambda: prepared, router)


@pytest.mark.parametrize(
    ("question", "status", "word"),
    [
        (b"nonsense", 400, "JSON"),
        (b"\xff", 400, ""),
        (b"{}", 400, "request"),
        (b'{"request": {}, "more": 1}', 400, "more"),
        (b'{"request": {"model": "none", "prompt": ""}}', 404, "none"),
        (b'{"request": {"model": "m", "prompt": 1}}', 400, "prompt"),
        (b'{"request": {"model": "m", "prompt": "x", "max_tokens": "1"}}', 400, "max_tokens"),
    ],
)
async def test_what_is_no_question(
    explainer: Explainer, question: bytes, status: int, word: str
) -> None:
    answered, document = await explainer.answer(question)
    assert answered == status
    assert word in str(document["error"])


@pytest.mark.parametrize("model", ["m", "lora"])
async def test_the_answer_is_plain_data(explainer: Explainer, model: str) -> None:
    request = {"model": model, "prompt": "x" * 400, "max_tokens": 5}
    status, document = await explainer.answer(json.dumps({"request": request}).encode())
    assert status == 200
    assert json.loads(json.dumps(document)) == {
        "model": model,
        "prompt_tokens": 100,
        "exact": False,
        "blocks": 1,
        "choice": None,
        "reason": "no_replica",
        "waiting": 0,
        "targets": [],
    }
