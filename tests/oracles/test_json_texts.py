"""The JSON test suite, and strings that have broken programs, as bodies of requests."""

from __future__ import annotations

from collections import Counter

import orjson
from beside import all_beside, beside

from core.errors import BadRequest
from proxy.call import Call, parse_call


def outcome(data: bytes) -> Call | BadRequest:
    """The call, or its refusal; nothing else may come of any bytes."""
    try:
        return parse_call(data)
    except BadRequest as error:
        return error


def test_the_json_test_suite() -> None:
    suite = all_beside("corpora/json", "**/*.json")
    names = Counter(path.name[:2] for path in suite)
    assert names["n_"] > 100
    assert names["y_"] > 50
    for path in suite:
        data = path.read_bytes()
        assert isinstance(outcome(data), BadRequest), path  # none of them names a model
        wrapped = b'{"model":"m","x":' + data + b"}"
        call = outcome(wrapped)
        if isinstance(call, BadRequest):
            assert not path.name.startswith("y_"), path
            assert call.reason == "invalid_json"
        else:
            assert not path.name.startswith("n_"), path
            assert orjson.loads(call.upstream_body("m", "")) == orjson.loads(wrapped)


def test_naughty_strings() -> None:
    strings = orjson.loads(beside("corpora/blns/blns.json").read_bytes())
    assert len(strings) > 400
    for text in strings:
        document = {"model": text or "m", "messages": [{"role": "user", "content": text}], text: 1}
        forwarded = parse_call(orjson.dumps(document)).upstream_body("real", "")
        assert orjson.loads(forwarded) == {**document, "model": "real"}
