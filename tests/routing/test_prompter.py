from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.errors import BadRequest, ConfigError, NotFound
from core.metrics import Metrics
from core.section import FilePath, Secret
from routing.blocks import chain
from routing.config import ModelConfig, RoutingConfig
from routing.prompter import Prompter
from routing.served_model import ServedModel


@pytest.fixture(scope="module")
def make_prompter(small_tokenizer: str, small_template: str) -> Callable[[Metrics], Prompter]:
    def make(metrics: Metrics) -> Prompter:
        models = [
            ModelConfig(
                name="m",
                aliases=("alias",),
                tokenizer=FilePath(small_tokenizer),
                chat_template=FilePath(small_template),
                max_model_len=10,
            ),
            ModelConfig(name="bare"),
        ]
        return Prompter(models, RoutingConfig(), metrics)

    return make


@pytest.fixture(scope="module")
def prompter(make_prompter: Callable[[Metrics], Prompter]) -> Iterator[Prompter]:
    """One for all, as it takes long to make; nothing of it but its threads changes."""
    made = make_prompter(Metrics.private())
    yield made
    made.close()


def user(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


async def test_prompts_are_counted_by_exactness(
    make_prompter: Callable[[Metrics], Prompter],
) -> None:
    metrics = Metrics.private()
    prompter = make_prompter(metrics)
    await prompter.chat("m", user("the"), "")
    await prompter.completion("m", {"prompt": "the"}, "")
    await prompter.chat("bare", user("the"), "")
    assert metrics.value("headrace_prompts_total", "m", "true") == 2
    assert metrics.value("headrace_prompts_total", "m", "false") == 0
    assert metrics.value("headrace_prompts_total", "bare", "false") == 1


async def test_salts_share_nothing(prompter: Prompter) -> None:
    doc = {"prompt": list(range(640))}
    one = await prompter.completion("m", doc, "tenant one")
    again = await prompter.completion("m", doc, "tenant one")
    two = await prompter.completion("m", doc, "tenant two")
    assert one.blocks == again.blocks
    assert not set(one.blocks) & set(two.blocks)


async def test_a_configured_secret_makes_gateways_agree(tmp_path: Path) -> None:
    def blocks(name: str) -> Prompter:
        path = tmp_path / name
        path.write_text(f"{name}\n")
        config = RoutingConfig(secret=Secret(f"file:{path}"))
        return Prompter([ModelConfig(name="m")], config)

    doc = {"prompt": list(range(640))}
    one, same, other = blocks("a"), blocks("a"), blocks("b")
    drawn = Prompter([ModelConfig(name="m")], RoutingConfig())
    results = [list((await p.completion("m", doc, "")).blocks) for p in (one, same, other, drawn)]
    assert results[0] == results[1]
    assert len({result[0] for result in results}) == 3


@pytest.mark.parametrize(
    ("doc", "aside"),
    [
        (user("the fox " * 100), False),
        (user("the fox " * 20_000), True),
        ({"messages": [{"role": "user", "content": "x"}] * 2000}, True),
    ],
)
async def test_large_prompts_leave_the_loops_thread(
    prompter: Prompter, monkeypatch: pytest.MonkeyPatch, doc: dict[str, Any], aside: bool
) -> None:
    threads = []

    def spy(data: bytes, block_tokens: int, start: int) -> list[int]:
        threads.append(threading.current_thread())
        return chain(data, block_tokens, start)

    monkeypatch.setattr("routing.served_model.chain", spy)
    prompt = await prompter.chat("m", doc, "s")
    assert (threads[0] is not threading.main_thread()) is aside
    expected = ServedModel.chat(prompter._models["m"], doc, prompter._seed("m", "s"), patient=False)
    assert prompt == expected


async def test_large_completions_too(small_tokenizer: str) -> None:
    models = [ModelConfig(name="m", tokenizer=FilePath(small_tokenizer))]
    prompter = Prompter(models, RoutingConfig())
    small = await prompter.completion("m", {"prompt": [1, 2]}, "")
    assert prompter._threads is None
    large = await prompter.completion("m", {"prompt": [1, 2] * 5000}, "")
    assert prompter._threads is not None
    assert (small.length, large.length) == (2, 10_000)
    prompter.close()


async def test_faults_in_large_prompts_come_back(prompter: Prompter) -> None:
    with pytest.raises(BadRequest):
        await prompter.chat("m", user("x" * 100_000 + "\ud800"), "")
    doc = {"messages": [*user("x" * 100_000)["messages"], {"role": "forbidden", "content": ""}]}
    with pytest.raises(BadRequest, match="no forbidden"):
        await prompter.chat("m", doc, "")


async def test_length_check(prompter: Prompter) -> None:
    prompt = await prompter.completion("m", {"prompt": [1] * 8}, "")
    prompter.check_length("m", prompt, 2)
    with pytest.raises(BadRequest):
        prompter.check_length("m", prompt, 3)


def test_names_and_aliases(prompter: Prompter) -> None:
    assert prompter.resolve("alias") == prompter.resolve("m") == "m"
    for name in ("nope", None, 5, ["m"]):
        with pytest.raises(NotFound) as caught:
            prompter.resolve(name)
        assert caught.value.reason == "model_not_found"
    assert len(str(caught.value)) < 500


def test_two_models_of_one_name_are_refused() -> None:
    models = [ModelConfig(name="a", aliases=("x",)), ModelConfig(name="b", aliases=("x",))]
    with pytest.raises(ConfigError, match="'x'"):
        Prompter(models, RoutingConfig())


async def test_works_without_metrics() -> None:
    prompter = Prompter([ModelConfig(name="m")], RoutingConfig())
    assert (await prompter.chat("m", user("hi"), "")).length > 0


def test_models_that_share_a_tokenizer_share_its_memory(small_tokenizer: str) -> None:
    models = [ModelConfig(name=name, tokenizer=FilePath(small_tokenizer)) for name in "ab"]
    prompter = Prompter(models, RoutingConfig())
    one, two = prompter._models.values()
    assert one._tokenizer is two._tokenizer is not None


def test_a_broken_file_is_found_when_built(tmp_path: Path) -> None:
    for field in ("tokenizer", "chat_template"):
        path = FilePath(tmp_path / "absent")
        with pytest.raises(ConfigError, match="absent"):
            Prompter([ModelConfig(name="m", **{field: path})], RoutingConfig())


async def test_a_changed_configuration_shares_what_has_not_changed(
    small_tokenizer: str, small_template: str
) -> None:
    model = ModelConfig(
        name="m", tokenizer=FilePath(small_tokenizer), chat_template=FilePath(small_template)
    )
    first = Prompter([model], RoutingConfig())
    assert first.renewed([model], RoutingConfig(policy="round_robin")) is first
    doc = {"prompt": list(range(640))}
    before = await first.completion("m", doc, "")
    second = first.renewed([model, ModelConfig(name="n")], RoutingConfig())
    third = second.renewed([model, ModelConfig(name="n")], RoutingConfig(block_tokens=128))
    for later in (second, third):
        assert later is not first
        assert later._models["m"]._tokenizer is first._models["m"]._tokenizer
        assert later._models["m"]._template is first._models["m"]._template
    assert (await second.completion("m", doc, "")).blocks == before.blocks
    assert (await third.completion("m", doc, "")).block_tokens == 128
    assert await second.chat("n", user("the"), "")
    with pytest.raises(ConfigError):
        first.renewed([model, model], RoutingConfig())


async def test_a_changed_secret_hashes_anew(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("one")
    models, config = [ModelConfig(name="m")], RoutingConfig(secret=Secret(f"file:{path}"))
    first = Prompter(models, config)
    assert first.renewed(models, config) is first
    path.write_text("two")
    second = first.renewed(models, config)
    doc = {"prompt": list(range(640))}
    old, new = await first.completion("m", doc, ""), await second.completion("m", doc, "")
    assert not set(old.blocks) & set(new.blocks)


async def test_an_adapters_prompts_are_tokenized_alike_and_match_nobody_elses(
    small_tokenizer: str,
) -> None:
    tokenizer = FilePath(small_tokenizer)
    models = [ModelConfig(name="m", tokenizer=tokenizer), ModelConfig(name="lora", adapter_of="m")]
    prompter = Prompter(models, RoutingConfig(block_tokens=16))
    document = {"prompt": "the quick brown fox " * 20}
    plain = await prompter.completion("m", document, "")
    adapted = await prompter.completion("lora", document, "")
    assert (plain.length, plain.exact) == (adapted.length, adapted.exact)
    assert plain.blocks
    assert set(plain.blocks).isdisjoint(adapted.blocks)
    # As engines tell of it: the adapter by its name, among the events of the model.
    start_of = prompter.start_of("m")
    assert start_of is not None
    assert start_of("lora", "s") == prompter.start_of("lora")(None, "s")  # type: ignore[misc]
    prompter.close()


async def test_images_match_nothing_but_themselves() -> None:
    prompter = Prompter([ModelConfig(name="m", multimodal=True)], RoutingConfig(block_tokens=16))

    def seen(url: str) -> dict[str, Any]:
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "?"}]
        intro = {"role": "system", "content": "look " * 100}
        return {"messages": [intro, {"role": "user", "content": parts * 2 + [parts[1]] * 20}]}

    one = await prompter.chat("m", seen("data:1"), "")
    same = await prompter.chat("m", seen("data:1"), "")
    other = await prompter.chat("m", seen("data:2"), "")
    assert one.blocks == same.blocks
    shared = [a == b for a, b in zip(one.blocks, other.blocks, strict=True)]
    assert shared[0]
    assert not shared[-1]
    assert shared == sorted(shared, reverse=True)
    prompter.close()


async def test_ids_are_kept_from_when_it_is_asked_for(
    make_prompter: Callable[[Metrics], Prompter],
) -> None:
    prompter = make_prompter(Metrics.private())
    document = {"messages": [{"role": "user", "content": "hi"}]}
    assert (await prompter.chat("m", document, "")).ids is None
    prompter.keep_ids(True)
    assert (await prompter.chat("m", document, "")).ids is not None
    assert (await prompter.chat("bare", document, "")).ids is None
    assert prompter.samples("m") is not None
    assert prompter.samples("bare") is None
