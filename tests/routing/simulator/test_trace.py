"""Traces in their formats."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from core.errors import ConfigError
from routing.simulator.trace import load, parse, sample

NO_LENGTHS = ("-3", "nan", "NaN", "1e400", str(10**18), str(10**30), "x", "")
MOONCAKE = """\
{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 1024, "output_length": 0, "hash_ids": [0, 3]}
{"timestamp": 3000, "input_length": 100, "output_length": 7, "hash_ids": [9]}
"""
TALK = """\
{"timestamp": 100, "session_id": 4, "turn": 0, "delay_ms": 0, "input_length": 40,
 "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 900, "session_id": 4, "turn": 1, "delay_ms": 250, "input_length": 63,
 "output_length": 5, "hash_ids": [0, 1, 2]}
""".replace(",\n", ",")
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:{minute:02}:00.0000000,{200 * (minute + 1)},10\n" for minute in range(20)
)


def test_partial_blocks_are_nobodys() -> None:
    trace = parse("m", MOONCAKE, "m.jsonl")
    assert trace.block_tokens == 512
    assert [request.blocks for request in trace.requests] == [(0, 1), (0, 3), ()]
    assert [request.output for request in trace.requests] == [5, 1, 7]
    assert trace.ceiling == 512 / 2224


def test_seeds_move_arrivals_within_the_resolution_of_the_trace() -> None:
    trace = parse("m", MOONCAKE, "m.jsonl")
    assert trace.spread_s == 3.0
    arrivals = trace.arrivals(2.0, seed=1)
    assert arrivals == trace.arrivals(2.0, seed=1) != trace.arrivals(2.0, seed=2)
    for request in arrivals:
        start = trace.requests[request.number].at
        assert start / 2 <= request.at <= (start + 3) / 2


def test_turns_follow_answers() -> None:
    first, second = parse("t", TALK, "t.jsonl").requests
    assert (first.after, first.at) == (None, 0.1)
    assert (second.after, second.at, second.blocks) == (0, 0.25, (0, 1, 2))


def test_sessions_are_synthesised_where_there_are_none(tmp_path: Path) -> None:
    file = tmp_path / "conv.csv.gz"
    file.write_bytes(gzip.compress(AZURE.encode()))
    trace = load(str(file))
    assert (trace.name, len(trace.requests)) == ("conv", 20)
    assert "synthesised" in trace.note
    assert 0.2 < trace.ceiling < 0.9
    for request in trace.requests:
        assert len(request.blocks) == request.length // 64
    assert trace.requests[1].at == 60.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "neither JSON lines"),
        ("a,b\n1,2\n", "neither JSON lines"),
        ('{"timestamp": 1}', "t:1: Object missing required field"),
        (MOONCAKE + "{]", "t:4: "),
        ('{"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": [1,2,3]}', "fit no"),
        (AZURE + "yesterday,1,2\n", "t:22: "),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"),
        *((AZURE + f"2023-11-16 18:17:03,{n},4\n", "t:22: ") for n in NO_LENGTHS),
        (AZURE + "2023-11-16 18:17:03,4\n", "t:22: Expected `int`, got `null`"),
        *((MOONCAKE.replace("1024", n), "t:2: ") for n in NO_LENGTHS),
        (MOONCAKE.replace("[0, 3]", "[0, -3]"), "t:2: Expected `int` >= 0"),
        (MOONCAKE.replace("[0, 3]", f"[0, {2**70}]"), "t:2: "),
        (MOONCAKE.replace('p": 3000', 'p": 1e300'), "t:2: Expected `float` <= 1000000000000000"),
    ],
)
def test_what_is_no_trace(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse("t", text, "t")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read as a trace"):
        load(str(tmp_path / "none.jsonl"))


def test_gzip_that_is_broken(tmp_path: Path) -> None:
    file = tmp_path / "broken.jsonl.gz"
    file.write_bytes(gzip.compress(b"{}")[:10] + b"\xff" * 30)
    with pytest.raises(ConfigError, match=r"broken.jsonl.gz: cannot be read as a trace: Error -3"):
        load(str(file))


def test_the_sample_is_always_the_same() -> None:
    assert load("sample") == sample()
    assert len(sample().first(7).requests) == 7
    assert sample().first(None) == sample()
