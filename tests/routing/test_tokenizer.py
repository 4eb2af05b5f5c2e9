from __future__ import annotations

import array
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers

from core.errors import BadRequest, ConfigError
from routing.tokenizer import FastTokenizer, HuggingFaceTokenizer, load_tokenizer

NASTY = [
    "",
    " ",
    "\x00",
    "a\u0301e\u0323\u0307",
    "\ufb01 Ⅷ ½ ﷺ",
    "👩‍👩‍👧‍👦🇩🇪 \u200b\ufeff\u2028",
    "<|im_start|>user\n<|im_end|> <|endoftext|>",
    "< |im_start| >",
    "  \n\n\t  x",
    "1234567890" * 20,
    "x" * 5000,
    "東京" * 500,
    "def f(x):\r\n\treturn {'a': x}\r\n",
    "I'LL don't WE'RE",
    "\U0010ffff\ud7ff",
]


def ids(data: bytes) -> list[int]:
    return array.array("I", data).tolist()


def random_texts(number: int) -> list[str]:
    rng = random.Random(7)
    ranges = [
        (32, 126),
        (0, 31),
        (0xA0, 0x2FF),
        (0x300, 0x36F),
        (0x4E00, 0x4FFF),
        (0x1F300, 0x1F6FF),
    ]
    texts = []
    for _ in range(number):
        letters = []
        for _ in range(rng.randint(1, 80)):
            low, high = rng.choices(ranges, weights=[8, 1, 2, 1, 2, 1])[0]
            letters.append(chr(rng.randint(low, high)))
        texts.append("".join(letters))
    return texts


def agrees(path: str, texts: list[str]) -> None:
    oracle = tokenizers.Tokenizer.from_file(path)
    oracle.no_truncation()
    loaded = load_tokenizer(path)
    assert isinstance(loaded, FastTokenizer)
    for special in (False, True):
        for text in texts:
            expected = oracle.encode(text, add_special_tokens=special).ids
            assert ids(loaded.encode(text, special=special)) == expected, text
        together = [ids(data) for data in loaded.encode_all(texts, special=special)]
        assert together == [oracle.encode(t, add_special_tokens=special).ids for t in texts]


def test_agrees_with_the_reference(small_tokenizer: str) -> None:
    agrees(small_tokenizer, [*NASTY, *random_texts(100), "<|user|>the<|end|> quick"])


@pytest.mark.parametrize("name", ["qwen3", "deepseek_v3"])
def test_agrees_with_the_reference_on_real_vocabularies(
    shared: Callable[[str], str], name: str
) -> None:
    agrees(shared(f"tokenizers/{name}.tokenizer.json"), [*NASTY, *random_texts(150)])


def test_truncation_and_padding_in_the_file_are_ignored(
    small_tokenizer: str, tmp_path: Path
) -> None:
    doc = json.loads(Path(small_tokenizer).read_text())
    doc["truncation"] = {
        "direction": "Right",
        "max_length": 3,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(doc))
    text = "the quick brown fox" * 20
    expected = load_tokenizer(small_tokenizer).encode(text, special=True)
    assert load_tokenizer(str(path)).encode(text, special=True) == expected


def test_falls_back_to_the_reference_library(
    small_tokenizer: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"the": 0, "fox": 1, "?": 2}, unk_token="?")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = str(tmp_path / "words.json")
    tokenizer.save(path)
    loaded = load_tokenizer(path)
    if isinstance(loaded, FastTokenizer):
        pytest.skip("this fastokens supports word-level models")
    assert "slower" in caplog.text
    assert loaded.inline_bytes == 0
    assert ids(loaded.encode("the fox ran", special=False)) == [0, 1, 2]
    assert [ids(x) for x in loaded.encode_all(["fox", "the"], special=False)] == [[1], [0]]


def test_the_fallback_gives_the_same_ids(small_tokenizer: str) -> None:
    slow = HuggingFaceTokenizer(tokenizers.Tokenizer.from_file(small_tokenizer))
    fast = load_tokenizer(small_tokenizer)
    for text in NASTY:
        assert slow.encode(text, special=True) == fast.encode(text, special=True)


def test_lone_surrogates_are_the_clients_fault(small_tokenizer: str) -> None:
    slow = HuggingFaceTokenizer(tokenizers.Tokenizer.from_file(small_tokenizer))
    for tokenizer in (slow, load_tokenizer(small_tokenizer)):
        with pytest.raises(BadRequest, match="surrogate"):
            tokenizer.encode("a\ud800", special=False)
        with pytest.raises(BadRequest, match="surrogate"):
            tokenizer.encode_all(["a", "\udfff"], special=False)


@pytest.mark.parametrize("content", [None, b"", b"{", b"{}", b"[]", b"\xff", b'{"model": 5}'])
def test_a_bad_file_is_one_sentence_with_its_path(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_tokenizer(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
