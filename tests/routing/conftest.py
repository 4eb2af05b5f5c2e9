"""A small tokenizer, a chat template, and a fleet that stands still."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from core.replica import Load, Replica

TEMPLATE = (
    "{%- if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}{% endfor %}\n{% endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'forbidden' %}{{ raise_exception('no ' + message.role) }}{% endif %}"
    "<|{{ message.role }}|>{{ message.content }}<|end|>\n"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}<|assistant|>{% endif %}"
    "{%- if quiet %}<|quiet|>{% endif %}"
)


@pytest.fixture(scope="session")
def small_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a byte-level BPE of 600 tokens with four added ones."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        show_progress=False,
        special_tokens=["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(
        ["the quick brown fox jumps over the lazy dog 0123"] * 20, trainer
    )
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)


@pytest.fixture(scope="session")
def small_template(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("template") / "template.jinja"
    path.write_text(TEMPLATE)
    return str(path)


class StillFleet:
    """Candidates as a test sets them."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas = tuple(replicas)
        self.loads: dict[str, Load] = {}

    def candidates(self, model: str) -> Sequence[Replica]:
        return tuple(self.replicas) if model == "m" else ()

    def load(self, replica_id: str) -> Load | None:
        return self.loads.get(replica_id)


@pytest.fixture
def fleet_of() -> Callable[..., StillFleet]:
    def make(number: int, **properties: object) -> StillFleet:
        return StillFleet([Replica(f"r{i}", "m", **properties) for i in range(number)])  # type: ignore[arg-type]

    return make


class ManualClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
