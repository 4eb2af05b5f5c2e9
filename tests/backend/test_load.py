from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.engines.sglang import LOAD as SGLANG
from backend.engines.vllm import LOAD as VLLM
from backend.load import parse_load

TEXT = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m}x"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4 1700000000
vllm:num_requests_waiting{engine="0"} 1.0
vllm:num_requests_waiting{engine="1"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 100.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:cache_config_info{hash_block_size="9",block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="500",x="y"} 1.0
"""


def test_engines_are_added_up() -> None:
    load = parse_load(TEXT, VLLM, 7.0)
    assert load is not None
    assert (load.running, load.waiting, load.kv_use) == (7, 3, 0.5)
    assert (load.kv_tokens, load.observed_at) == (24000, 7.0)


def test_one_engine_of_several() -> None:
    load = parse_load(TEXT, VLLM, 7.0, rank=1)
    assert load is not None
    assert (load.running, load.waiting, load.kv_use, load.kv_tokens) == (4, 2, 0.75, 8000)
    assert parse_load(TEXT, VLLM, 7.0, rank=2) is None


def test_first_line_and_no_labels_and_no_last_newline() -> None:
    load = parse_load(b"vllm:num_requests_running 1\nvllm:num_requests_waiting 2", VLLM, 0.0)
    assert load is not None
    assert (load.running, load.waiting, load.kv_use, load.kv_tokens) == (1, 2, 0.0, None)


@pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"-1", b"", b"x"])
def test_what_is_no_count_is_not_taken(value: bytes) -> None:
    text = b"vllm:num_requests_running " + value + b"\nvllm:num_requests_waiting 2\n"
    assert parse_load(text, VLLM, 0.0) is None


def test_blocks_that_are_not_known_yet() -> None:
    assert parse_load(TEXT.replace(b'"500"', b'"None"'), VLLM, 0.0).kv_tokens is None  # type: ignore[union-attr]


@pytest.mark.parametrize("text", [b"", b"\n", b"<html>", b"vllm:num_requests_running"])
def test_other_text(text: bytes) -> None:
    assert parse_load(text, VLLM, 0.0) is None


@settings(max_examples=30, deadline=None)
@given(st.integers(0, len(TEXT)), st.integers(0, len(TEXT)), st.binary(max_size=20))
def test_any_text_ends(start: int, end: int, noise: bytes) -> None:
    load = parse_load(TEXT[:start] + noise + TEXT[end:], VLLM, 1.0)
    assert load is None or load.running >= 0


SGLANG_TEXT = b"""# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="m",tp_rank="0"} 3.0
sglang:num_running_reqs{dp_rank="1",engine_type="unified",model_name="m",tp_rank="0"} 1.0
sglang:num_running_reqs_offline_batch{dp_rank="0",model_name="m"} 100.0
sglang:num_queue_reqs{dp_rank="0",engine_type="unified",model_name="m",tp_rank="0"} 2.0
sglang:num_queue_reqs{dp_rank="1",engine_type="unified",model_name="m",tp_rank="0"} 0.0
sglang:token_usage{dp_rank="0",engine_type="unified",model_name="m",tp_rank="0"} 0.5
sglang:token_usage{dp_rank="1",engine_type="unified",model_name="m",tp_rank="0"} 0.25
sglang:max_total_num_tokens{dp_rank="0",engine_type="unified",model_name="m"} 1000.0
sglang:max_total_num_tokens{dp_rank="1",engine_type="unified",model_name="m"} 1000.0
sglang:max_total_num_tokens_swa{dp_rank="1",engine_type="unified",model_name="m"} 7.0
"""


def test_sglang_says_it_in_other_words() -> None:
    load = parse_load(SGLANG_TEXT, SGLANG, 1.0)
    assert load is not None
    assert (load.running, load.waiting, load.kv_use, load.kv_tokens) == (4, 2, 0.375, 2000)
    one = parse_load(SGLANG_TEXT, SGLANG, 1.0, rank=1)
    assert one is not None
    assert (one.running, one.waiting, one.kv_use, one.kv_tokens) == (1, 0, 0.25, 1000)
    assert parse_load(SGLANG_TEXT, VLLM, 1.0) is None


def test_what_sglang_says_by_priority_is_not_counted_twice() -> None:
    text = b"""
sglang:num_running_reqs{dp_rank="0",priority="",tp_rank="0"} 5.0
sglang:num_running_reqs{dp_rank="0",priority="1",tp_rank="0"} 3.0
sglang:num_running_reqs{dp_rank="0",priority="-2",tp_rank="0"} 2.0
sglang:num_queue_reqs{dp_rank="0",priority="",tp_rank="0"} 1.0
sglang:num_queue_reqs{dp_rank="0",priority="1",tp_rank="0"} 1.0
"""
    load = parse_load(text, SGLANG, 1.0)
    assert load is not None
    assert (load.running, load.waiting) == (5, 1)
