from __future__ import annotations

import pytest

from loadtest.replica.apis import APIS
from loadtest.replica.request import Refused

BY_PATH = {api.path: api for api in APIS}


def test_every_path_is_there_once():
    assert len(BY_PATH) == len(APIS) == 16


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_a_broken_body_is_refused_in_the_shape_of_the_path(path):
    with pytest.raises(Refused) as caught:
        BY_PATH[path].translated({"messages": [{}]})
    assert caught.value.body["type"] == "error"


def test_a_pooling_request_stands_for_one_token():
    asked = BY_PATH["/v1/embeddings"].translated({"model": "m", "input": ["a", "b"]})
    assert asked == {"model": "m", "prompt": "a b", "max_tokens": 1}
    ids = BY_PATH["/v1/embeddings"].translated({"model": "m", "input": [1, 2]})
    assert ids["prompt"] == [1, 2]
