from __future__ import annotations

import array
import json
from pathlib import Path
from typing import Any

import pytest

from core.errors import BadRequest
from core.prompt import Prompt
from core.section import FilePath
from routing.config import ModelConfig
from routing.served_model import ServedModel

HELLO = [{"role": "user", "content": "the quick brown fox"}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4000}}


@pytest.fixture(scope="module")
def exact(small_tokenizer: str, small_template: str) -> ServedModel:
    config = ModelConfig(
        name="m",
        tokenizer=FilePath(small_tokenizer),
        chat_template=FilePath(small_template),
        max_model_len=100,
        max_prompt_bytes=10_000,
        multimodal=True,
    )
    return ServedModel(config, 64)


@pytest.fixture(scope="module")
def bare() -> ServedModel:
    return ServedModel(ModelConfig(name="bare"), 64)


def chat(model: ServedModel, doc: dict[str, Any], start: int = 1) -> Prompt:
    prompt = model.chat(doc, start, patient=False)
    assert model.chat(doc, start, patient=True) == prompt
    assert model.plain_chat(doc, start) in (prompt, None)
    return prompt


@pytest.fixture(scope="module", params=["string", "openai"])
def by_format(
    request: pytest.FixtureRequest, small_tokenizer: str, small_template: str
) -> ServedModel:
    config = ModelConfig(
        name="m",
        tokenizer=FilePath(small_tokenizer),
        chat_template=FilePath(small_template),
        content_format=request.param,
        max_prompt_bytes=10_000,
    )
    return ServedModel(config, 64)


@pytest.mark.parametrize(
    "messages",
    [
        HELLO,
        [{"content": "the role comes last", "role": "user"}],
        [{"role": "system", "content": "be brief " * 50}, *HELLO],
        [*HELLO, {"role": "assistant", "content": ""}, {"role": "user", "content": "ü 東 🙂\x1c"}],
    ],
)
def test_common_chats_take_the_short_way_to_the_same(
    by_format: ServedModel, messages: list[Any]
) -> None:
    doc = {"model": "m", "messages": messages, "max_tokens": 5, "temperature": 0.5}
    prompt = by_format.plain_chat(doc, 7)
    assert prompt is not None
    assert prompt == by_format.chat(doc, 7, patient=False)


@pytest.mark.parametrize(
    "more",
    [
        {"tools": []},
        {"documents": []},
        {"add_generation_prompt": False},
        {"add_special_tokens": True},
        {"truncate_prompt_tokens": 5},
        {"continue_final_message": True},
        {"chat_template_kwargs": {"quiet": True}},
        {"reasoning_effort": "low"},
        {"messages": [{"role": "user", "content": "x " * 40_000}]},
        {"messages": [{"role": "forbidden", "content": "x"}]},
        {"messages": None},
    ],
)
def test_other_chats_take_the_long_way(exact: ServedModel, more: dict[str, Any]) -> None:
    assert exact.plain_chat({"messages": HELLO}, 1) is not None
    assert exact.plain_chat({"messages": HELLO, **more}, 1) is None


def test_without_a_tokenizer_both_ways_estimate_alike(bare: ServedModel) -> None:
    estimated = bare.plain_chat({"messages": HELLO}, 1)
    assert estimated == bare.chat({"messages": HELLO}, 1, patient=False)
    assert bare.plain_chat({"messages": HELLO, "tools": []}, 1) is None


def test_faults_on_the_short_way(by_format: ServedModel) -> None:
    for content in ("x" * 10_001, "東" * 3334):
        doc = {"messages": [{"role": "user", "content": content}]}
        with pytest.raises(BadRequest) as short:
            by_format.plain_chat(doc, 1)
        with pytest.raises(BadRequest) as long:
            by_format.chat(doc, 1, patient=False)
        assert str(short.value) == str(long.value)
        assert short.value.param == long.value.param


def test_a_chat_is_rendered_and_counted(exact: ServedModel) -> None:
    prompt = chat(exact, {"messages": HELLO})
    ids = exact.completion({"prompt": "<|user|>the quick brown fox<|end|><|assistant|>"}, 1)
    assert prompt == ids
    assert prompt.exact
    assert prompt.length == prompt.longest > 5


def test_turns_extend_the_chain(exact: ServedModel, bare: ServedModel) -> None:
    for model in (exact, bare):
        messages = [{"role": "user", "content": "the lazy dog " * 60}]
        before = chat(model, {"messages": messages, "add_generation_prompt": False})
        messages = [*messages, {"role": "user", "content": "the quick fox " * 60}]
        after = chat(model, {"messages": messages})
        assert len(after.blocks) > len(before.blocks) > 1
        # An estimate sees a message's end as text, so its last block may differ.
        common = len(before.blocks)
        assert after.blocks[:common] == before.blocks


def test_another_start_shares_nothing(exact: ServedModel) -> None:
    doc = {"prompt": list(range(64 * 4))}
    one, two = exact.completion(doc, 1), exact.completion(doc, 2)
    assert len(one.blocks) == 4
    assert not set(one.blocks) & set(two.blocks)


def test_tools_are_part_of_the_prompt(exact: ServedModel, bare: ServedModel) -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "d" * 300}}]
    for model in (exact, bare):
        without = chat(model, {"messages": HELLO})
        with_tools = chat(model, {"messages": HELLO, "tools": tools})
        assert with_tools.length > without.length + 50
        assert with_tools.blocks != without.blocks


def test_without_tokenizer_bytes_are_counted(bare: ServedModel, small_template: str) -> None:
    prompt = chat(bare, {"messages": [{"role": "user", "content": "ü" * 2000}]})
    assert not prompt.exact
    assert 1000 <= prompt.length <= 1020
    assert len(prompt.blocks) == prompt.length // 64
    config = ModelConfig(name="t", chat_template=FilePath(small_template))
    rendered = chat(ServedModel(config, 64), {"messages": [{"role": "user", "content": "x" * 400}]})
    assert not rendered.exact
    assert rendered.length == len("<|user|>" + "x" * 400 + "<|end|><|assistant|>") // 4
    assert bare.completion({"prompt": ""}, 1).length == 1


def test_media_make_an_estimate(exact: ServedModel, bare: ServedModel) -> None:
    content = [{"type": "text", "text": "look " * 100}, IMAGE]
    prompt = chat(exact, {"messages": [{"role": "user", "content": content}]})
    assert not prompt.exact
    assert 1024 < prompt.length < 1024 + 300
    later = [{"role": "user", "content": content}, {"role": "user", "content": "more " * 100}]
    grown = chat(exact, {"messages": later})
    assert grown.blocks[: len(prompt.blocks)] == prompt.blocks
    with pytest.raises(BadRequest, match="text only") as caught:
        bare.chat({"messages": [{"role": "user", "content": content}]}, 1, patient=False)
    assert caught.value.param == "messages"


def test_completions_of_every_shape(exact: ServedModel) -> None:
    text = exact.completion({"prompt": "the quick brown fox"}, 1)
    assert text.exact
    batch = exact.completion({"prompt": ["the", "the quick brown fox"]}, 1)
    assert batch.longest == text.length
    assert batch.length > batch.longest
    ids = exact.completion({"prompt": [1, 2, 3]}, 1)
    assert (ids.length, ids.longest, ids.exact) == (3, 3, True)
    lists = exact.completion({"prompt": [[1, 2, 3], [4]]}, 1)
    assert (lists.length, lists.longest) == (4, 3)


def test_ids_are_exact_even_without_a_tokenizer(bare: ServedModel, exact: ServedModel) -> None:
    prompt = bare.completion({"prompt": list(range(200))}, 1)
    assert (prompt.length, len(prompt.blocks), prompt.exact) == (200, 3, True)
    # More than one slice.
    many = list(range(60_000))
    assert exact.completion({"prompt": many}, 1).length == 60_000


def test_special_tokens_are_added_to_completions_only(
    small_tokenizer: str, small_template: str, tmp_path: Path
) -> None:
    doc = json.loads(Path(small_tokenizer).read_text())
    doc["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|system|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [
            {"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {
            "<|system|>": {"id": "<|system|>", "ids": [1], "tokens": ["<|system|>"]}
        },
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(doc))
    config = ModelConfig(name="m", tokenizer=FilePath(path), chat_template=FilePath(small_template))
    model = ServedModel(config, 64)
    plain = model.completion({"prompt": "the fox", "add_special_tokens": False}, 1).length
    assert model.completion({"prompt": "the fox"}, 1).length == plain + 1
    assert model.completion({"prompt": ["the fox", "the fox"]}, 1).length == 2 * (plain + 1)
    chatted = chat(model, {"messages": HELLO}).length
    assert chat(model, {"messages": HELLO, "add_special_tokens": True}).length == chatted + 1


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        5,
        {},
        [],
        [None],
        ["a", 5],
        [5, "a"],
        [1.5],
        [[1], 5],
        [[1], ["a"]],
        [-1],
        [2**32],
        [[]],
    ],
)
def test_malformed_completions_do_not_crash(exact: ServedModel, prompt: object) -> None:
    if prompt == [[]]:
        assert exact.completion({"prompt": prompt}, 1).length == 0
        return
    with pytest.raises(BadRequest) as caught:
        exact.completion({"prompt": prompt}, 1)
    assert caught.value.param == "prompt"


def test_embeddings_as_prompt_are_left_to_the_engine(exact: ServedModel) -> None:
    prompt = exact.completion({"prompt_embeds": "AAAA"}, 1)
    assert (prompt.length, prompt.exact, list(prompt.blocks)) == (1, False, [])


@pytest.mark.parametrize(
    ("keep", "side", "length"),
    [(50, "left", 50), (50, "right", 50), (-1, "left", 100), (0, "left", 200), ("x", "left", 200)],
)
def test_truncation_by_the_engine_is_foreseen(
    exact: ServedModel, keep: object, side: str, length: int
) -> None:
    doc = {"prompt": list(range(200)), "truncate_prompt_tokens": keep, "truncation_side": side}
    assert exact.completion(doc, 1).length == length


def test_truncation_keeps_the_right_end(exact: ServedModel) -> None:
    ids = list(range(200))
    doc = {"prompt": ids, "truncate_prompt_tokens": 64}
    left = exact.completion(doc, 1).blocks
    assert left == exact.completion({"prompt": ids[-64:]}, 1).blocks
    right = exact.completion({**doc, "truncation_side": "right"}, 1).blocks
    assert right == exact.completion({"prompt": ids[:64]}, 1).blocks


@pytest.mark.parametrize("letter", ["x", "ü", "東"])
def test_prompts_beyond_the_cap_are_refused_before_encoding(
    exact: ServedModel, letter: str
) -> None:
    number = 10_000 // len(letter.encode())
    assert exact.completion({"prompt": letter * number}, 1).length > 0
    with pytest.raises(BadRequest, match="accepts at most 10000"):
        exact.completion({"prompt": letter * (number + 1)}, 1)
    with pytest.raises(BadRequest, match="accepts at most 10000"):
        exact.completion({"prompt": [letter * (number - 5), "y" * 40]}, 1)
    messages = [{"role": "user", "content": letter * number}]
    with pytest.raises(BadRequest, match="accepts at most 10000") as caught:
        exact.chat({"messages": messages}, 1, patient=False)
    assert caught.value.param == "messages"


def test_text_that_is_not_unicode_is_refused(exact: ServedModel, bare: ServedModel) -> None:
    for model in (exact, bare):
        doc = {"messages": [{"role": "user", "content": "\ud800"}]}
        with pytest.raises(BadRequest):
            model.chat(doc, 1, patient=False)
        with pytest.raises(BadRequest):
            model.completion({"prompt": "\ud800"}, 1)
    with pytest.raises(BadRequest):
        exact.plain_chat(doc, 1)


def prompt_of(longest: int, *, exact: bool = True) -> Prompt:
    return Prompt("m", longest, longest, exact, (), 64)


def test_length_in_the_engines_words(exact: ServedModel, bare: ServedModel) -> None:
    exact.check_length(prompt_of(100), None)
    exact.check_length(prompt_of(90), 10)
    with pytest.raises(BadRequest) as caught:
        exact.check_length(prompt_of(101), None)
    assert caught.value.param == "input_tokens"
    assert caught.value.message == (
        "This model's maximum context length is 100 tokens. However, your prompt contains 101 "
        "input tokens, which exceeds this limit even without any output tokens. Please reduce the "
        "length of the input prompt. (parameter=input_tokens, value=101)"
    )
    with pytest.raises(BadRequest, match="you requested 11 output tokens") as caught:
        exact.check_length(prompt_of(90), 11)
    assert caught.value.param == "input_tokens"
    with pytest.raises(BadRequest) as caught:
        exact.check_length(prompt_of(1), 101)
    assert caught.value.param == "max_tokens"
    assert caught.value.message == (
        "max_tokens=101 cannot be greater than max_model_len=100. Please request fewer output "
        "tokens. (parameter=max_tokens, value=101)"
    )
    # An estimate is for the engine to judge; so is everything when no limit is known.
    exact.check_length(prompt_of(1000, exact=False), 100)
    bare.check_length(prompt_of(10**6), 10**6)


def test_ids_survive_the_way_to_bytes(exact: ServedModel) -> None:
    ids = [0, 1, 255, 256, 65535, 2**31, 2**32 - 1] * 16
    expected = exact.completion({"prompt": ids}, 1).blocks
    assert expected == exact.completion({"prompt": array.array("I", ids).tolist()}, 1).blocks
    assert len(expected) == 1


def test_samples_are_what_requests_come_to(exact: ServedModel) -> None:
    samples = exact.samples()
    assert samples is not None
    assert len({len(sample.ids) for sample in samples.chats}) > 1
    for sample in samples.chats:
        assert len(sample.ids) == exact.chat({**sample.fields}, 1, patient=False).length
    assert len(samples.text.ids) == exact.completion({**samples.text.fields}, 1).length


def test_there_are_no_samples_where_nothing_is_tokenized(
    bare: ServedModel, small_tokenizer: str
) -> None:
    assert bare.samples() is None
    samples = ServedModel(ModelConfig(name="m", tokenizer=FilePath(small_tokenizer)), 64).samples()
    assert samples is not None
    assert samples.chats == []


def test_ids_are_kept_where_they_are_wanted(small_tokenizer: str, small_template: str) -> None:
    model = ServedModel(
        ModelConfig(
            name="m", tokenizer=FilePath(small_tokenizer), chat_template=FilePath(small_template)
        ),
        64,
    )
    tools = [{"type": "function", "function": {"name": "f"}}]
    for doc in ({"messages": HELLO}, {"messages": HELLO, "tools": tools}):
        assert chat(model, doc).ids is None
        model.keeps_ids = True
        prompt = chat(model, doc)
        assert prompt.ids is not None
        assert len(array.array("I", prompt.ids)) == prompt.length
        model.keeps_ids = False
    model.keeps_ids = True
    assert model.completion({"prompt": "the fox"}, 1).ids is not None
    assert model.completion({"prompt": ["the", "fox"]}, 1).ids is None
