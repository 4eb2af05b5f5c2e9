"""Prompts that a real vLLM is given as token ids."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client import ask
from mixed_chats import mixed_chats
from running import SHARED, Process, eventually, metric
from vllm_engine import MODEL, Engine, configuration, make_model

CHATS = 500
QWEN3 = SHARED / "tokenizers"


@pytest.fixture(params=["demo", "qwen3"])
def engine(
    request: pytest.FixtureRequest, engines: list[Engine], tmp_path: Path
) -> Iterator[tuple[Engine, dict[str, str]]]:
    """One, and where the gateway finds its tokenizer and template, if not where the others have
    theirs."""
    if request.param == "demo":
        yield engines[0], {}
        return
    if not (QWEN3 / "qwen3.tokenizer.json").exists():
        pytest.skip("there is no ../shared/tokenizers")
    model = make_model(tmp_path / "model", vocabulary=151_936)
    files = {
        "tokenizer": shutil.copy(QWEN3 / "qwen3.tokenizer.json", model / "tokenizer.json"),
        "chat_template": shutil.copy(
            QWEN3 / "qwen3.tokenizer_config.json", model / "tokenizer_config.json"
        ),
    }
    started = Engine(model)
    try:
        started.start()
        started.wait_ready()
        yield started, {name: str(path) for name, path in files.items()}
    finally:
        started.kill()


async def prompt_ids(port: int, document: dict[str, Any], path: str) -> list[int]:
    """What the engine says that its prompt was."""
    same = {"model": MODEL, "max_tokens": 1, "temperature": 0, "return_token_ids": True}
    headers = {"Content-Type": "application/json"}
    answer = await ask(port, {**document, **same}, path=path, headers=headers)
    assert answer.status == 200, answer.body
    found = answer.json()
    ids: list[int] = found.get("prompt_token_ids") or found["choices"][0]["prompt_token_ids"]
    assert found["usage"]["prompt_tokens"] == len(ids)
    return ids


async def test_the_engine_gets_the_ids_that_it_would_have_made(
    engine: tuple[Engine, dict[str, str]],
) -> None:
    """Token for token, of mixed chats and of texts."""
    replica, files = engine
    document = configuration([replica], upstream={"token_ids": "auto"})
    document["models"][0] |= files
    texts = [{"prompt": fields["messages"][0]["content"]} for fields in mixed_chats(60, seed=2)]
    texts = [fields for fields in texts if isinstance(fields["prompt"], str) and fields["prompt"]]
    with Process(document) as gateway:

        async def known() -> bool:
            return (
                b"takes token ids: chats by `kv_transfer_params`; completions" in gateway.stderr()
            )

        await eventually(known, 120)
        for path, questions in (
            ("/v1/chat/completions", [*mixed_chats(CHATS)]),
            ("/v1/completions", texts),
        ):
            for question in questions:
                ours = await prompt_ids(gateway.port, question, path)
                assert ours == await prompt_ids(replica.port, question, path), question
            handed = await metric(gateway, "headrace_prompts_handed_over_total", route=path)
            assert handed == len(questions)
