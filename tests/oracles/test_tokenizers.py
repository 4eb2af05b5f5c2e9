"""Token ids of real vocabularies beside those of the reference library."""

from __future__ import annotations

import pytest
from beside import beside
from reference_tokenizer import NASTY, agrees, random_texts


@pytest.mark.parametrize("name", ["qwen3", "deepseek_v3"])
def test_agrees_with_the_reference_on_real_vocabularies(name: str) -> None:
    path = beside(f"tokenizers/{name}.tokenizer.json")
    agrees(str(path), [*NASTY, *random_texts(150)])
