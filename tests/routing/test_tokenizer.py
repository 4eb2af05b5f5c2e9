from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from reference_tokenizer import NASTY, agrees, ids, random_texts

from core.errors import BadRequest, ConfigError
from routing.tokenizer import FastTokenizer, HuggingFaceTokenizer, load_tokenizer


def test_agrees_with_the_reference(small_tokenizer: str) -> None:
    agrees(small_tokenizer, [*NASTY, *random_texts(100), "<|user|>the<|end|> quick"])


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
