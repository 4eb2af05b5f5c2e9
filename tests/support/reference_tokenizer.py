"""Texts on which tokenizers tend to differ, and the comparison with the reference library."""

from __future__ import annotations

import array
import random

import tokenizers

from routing.tokenizer import FastTokenizer, load_tokenizer

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
