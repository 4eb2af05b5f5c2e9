from __future__ import annotations

import json

import pytest

from loadtest.replica import plain


@pytest.mark.parametrize(
    ("path", "rows", "count"),
    [
        ("/v1/embeddings", "data", 3),
        ("/pooling", "data", 3),
        ("/v1/rerank", "results", 2),
        ("/score", "data", 2),
        ("/classify", "data", 3),
    ],
)
def test_each_text_has_its_row_and_usage_is_of_the_prompt(path, rows, count):
    answer = plain.pooled(path, "m", 3, 7, 1)
    assert len(answer[rows]) == count
    assert answer["usage"]["prompt_tokens"] == 7


def test_texts_are_found_under_their_names():
    assert plain.texts_of({"input": [1, 2]}) == [[1, 2]]
    assert plain.texts_of({"query": "q", "documents": ["a", "b"]}) == ["q", "a", "b"]


def test_the_answer_was_known_before():
    wording = plain.PlainWording("a", {"count": 1}, lambda body: {"wrapped": body})
    assert json.loads(wording.document("", [0], 0, "stop")) == {"count": 1}
    assert wording.error_body(503)["wrapped"]["error"]["code"] == 503
    assert wording.opening() == wording.failure(500) == []
