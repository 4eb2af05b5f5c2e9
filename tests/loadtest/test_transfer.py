"""The fake replica's side of prompts that are prefilled elsewhere."""

from __future__ import annotations

import pytest

from loadtest.replica.options import ReplicaOptions
from loadtest.replica.transfer import fetches, handed_over, hands_over


def test_what_is_handed_over_can_be_fetched() -> None:
    asked = {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}}
    assert hands_over(asked)
    assert not fetches(asked)
    told = {"kv_transfer_params": handed_over(range(33), ReplicaOptions(block_size=16))}
    assert told["kv_transfer_params"]["remote_block_ids"] == [0, 1, 2]
    assert fetches(told)
    assert not hands_over(told)


@pytest.mark.parametrize("name", ["remote_engine_id", "remote_block_ids", "remote_host"])
def test_nobody_fetches_from_nowhere(name: str) -> None:
    params = handed_over(range(3), ReplicaOptions()) | {name: None}
    with pytest.raises(ValueError, match=name):
        fetches({"kv_transfer_params": params})


@pytest.mark.parametrize("body", [{}, {"kv_transfer_params": None}, {"kv_transfer_params": []}])
def test_most_requests_know_nothing_of_it(body: dict[str, object]) -> None:
    assert not hands_over(body)
    assert not fetches(body)
