"""What a replica says to `kv_transfer_params` as vLLM's NIXL connector does. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadtest.replica.options import ReplicaOptions

_ENGINE = "fake-engine"
_PORT = 5600


def hands_over(body: dict[str, Any]) -> bool:
    """The prompt is prefilled for another replica."""
    params = body.get("kv_transfer_params")
    return isinstance(params, dict) and params.get("do_remote_decode") is True


def fetches(body: dict[str, Any]) -> bool:
    """The prompt was prefilled by another replica, which said where. Raises ValueError when it
    did not say so properly."""
    params = body.get("kv_transfer_params")
    if not isinstance(params, dict) or params.get("do_remote_prefill") is not True:
        return False
    for name, kind in (
        ("remote_engine_id", str),
        ("remote_block_ids", list),
        ("remote_host", str),
        ("remote_port", int),
    ):
        if not isinstance(params.get(name), kind):
            raise ValueError(f"kv_transfer_params.{name} is missing")
    return True


def handed_over(prompt_ids: Sequence[int], options: ReplicaOptions) -> dict[str, Any]:
    """Where the blocks of `prompt_ids` are to be fetched."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": list(range(-(-len(prompt_ids) // options.block_size))),
        "remote_engine_id": _ENGINE,
        "remote_host": "127.0.0.1",
        "remote_port": _PORT,
        "tp_size": 1,
    }
