"""The two legs of a request whose prompt is prefilled elsewhere (vLLM's NIXL connector). Pure.

One replica prefills, answers one token and says in `kv_transfer_params` where its blocks are; the
one that goes on gets that word for word and fetches them. Both get the same request otherwise.
"""

from __future__ import annotations

from typing import Any

import orjson

PATHS = frozenset({b"/v1/chat/completions", b"/v1/completions"})
"""Those whose bodies can carry the parameters."""
_FIELD = "kv_transfer_params"
# What the other side fills in must be there, empty, or older connectors refuse the request.
_ASK = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
# Of an answer of one token in one piece they mean nothing, or contradict it.
_NOT_OF_A_PREFILL = ("min_tokens", "stream_options", "n", "best_of")
_BOUNDS = ("max_tokens", "max_completion_tokens")


def may_split(path: bytes, body: bytes, *, batch: bool) -> bool:
    """Whether a request can be prefilled elsewhere: of one prompt, and not steered already."""
    return path in PATHS and not batch and b'"kv_transfer_params"' not in body


def prefill_body(body: bytes) -> bytes:
    """The leg that prefills."""
    document = orjson.loads(body)
    for name in _NOT_OF_A_PREFILL:
        document.pop(name, None)
    for name in _BOUNDS:
        if name == "max_tokens" or name in document:
            document[name] = 1
    document["stream"] = False
    document[_FIELD] = _ASK
    return orjson.dumps(document)


def decode_body(body: bytes, params: dict[str, Any]) -> bytes:
    """The leg that goes on from there."""
    document = orjson.loads(body)
    document[_FIELD] = params
    return orjson.dumps(document)


def params_of(answer: bytes) -> dict[str, Any] | None:
    """What the one that prefilled says of its blocks; None: nothing to go on from."""
    try:
        document = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return None
    params = document.get(_FIELD) if isinstance(document, dict) else None
    if not isinstance(params, dict) or not params.get("do_remote_prefill"):
        return None
    return params
