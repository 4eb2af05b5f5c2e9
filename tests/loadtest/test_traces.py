"""Recorded traffic: its formats, and the sessions that are made of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from loadtest import prompts
from loadtest.traces import (
    TOKENS_PER_WORD,
    Row,
    TraceError,
    block_tokens,
    load,
    mean_rate,
    plan_of,
    scenario_of,
    shortened,
)

MOONCAKE = [
    {"timestamp": 4000, "input_length": 1300, "output_length": 9, "hash_ids": [0, 1, 2]},
    {"timestamp": 1000, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1]},
    {"timestamp": 7000, "input_length": 700, "output_length": 5, "hash_ids": [0, 9]},
]
NO_LENGTHS = ("-3", "nan", "NaN", "1e400", str(10**18), str(10**30), "x", "")
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:0{n}.9799600,{100 * n},{n}\n" for n in (3, 4, 6)
)
BURST = "Timestamp,Model,Request tokens,Response tokens\n5,ChatGPT,472,18\n45,ChatGPT,1087,230\n"


def write(folder: Path, text: str, *, packed: bool = False) -> Path:
    path = folder / "trace"
    data = text.encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


def mooncake(folder: Path, *, packed: bool = True) -> list[Row]:
    text = "\n".join(json.dumps(line) for line in MOONCAKE)
    return load(write(folder, text, packed=packed))


@pytest.mark.parametrize("packed", [True, False])
def test_json_lines_in_the_order_of_their_times(tmp_path: Path, packed: bool) -> None:
    rows = mooncake(tmp_path, packed=packed)
    assert [(row.at_s, row.prompt_tokens, row.output_tokens) for row in rows] == [
        (0, 1024, 5),
        (3, 1300, 9),
        (6, 700, 5),
    ]
    assert rows[1].blocks == (0, 1, 2)
    assert block_tokens(rows) == 512
    assert mean_rate(rows) == 0.5


def test_tables_of_two_makes(tmp_path: Path) -> None:
    azure = load(write(tmp_path, AZURE))
    assert [round(row.at_s, 3) for row in azure] == [0, 1, 3]
    assert (azure[0].prompt_tokens, azure[0].output_tokens) == (300, 3)
    assert block_tokens(azure) == 0
    burst = load(write(tmp_path, BURST))
    assert [(row.at_s, row.prompt_tokens, row.output_tokens) for row in burst] == [
        (0, 472, 18),
        (40, 1087, 230),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("a,b\n1,2\n", "line 1: columns"),
        (AZURE + "soon,1,2\n", "line 5"),
        ('{"timestamp": 1}\n', "line 1"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"),
        *((AZURE + f"2023-11-16 18:17:03,{n},4\n", "line 5: ") for n in NO_LENGTHS),
        *((AZURE + f"{at},3,4\n", "line 5: ") for at in ("nan", "-inf", "1e300")),
        (AZURE + "2023-11-16 18:17:03,4\n", "line 5: "),
        *(
            (f'{{"timestamp": 0, "input_length": {n}, "output_length": 1}}', "line 1: ")
            for n in NO_LENGTHS
        ),
        ('{"timestamp": 1e300, "input_length": 1, "output_length": 1}', "line 1: "),
        ('{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [-1]}', "line 1: "),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(TraceError, match=words):
        load(write(tmp_path, text))


def test_requests_share_what_they_shared(tmp_path: Path) -> None:
    rows = mooncake(tmp_path)
    scenario = scenario_of("t", rows, 2.0, "m")
    plan = plan_of(rows, scenario, speed=2.0, jitter_s=0.0, seed=1)
    assert [session.due_s for session in plan] == [0, 1.5, 3]
    corpus = prompts.Corpus(1)
    texts = [prompts.question(session, 0, corpus)["content"].split() for session in plan]
    two, three, other = texts
    block = round(512 / TOKENS_PER_WORD)
    assert two[: 2 * block] == three[: 2 * block]
    assert two[:block] == other[:block]
    assert two[block : block + 20] != other[block : block + 20]
    for row, text in zip(rows, texts, strict=True):
        assert len(text) == pytest.approx(row.prompt_tokens / TOKENS_PER_WORD, abs=2)


def test_without_blocks_no_two_requests_begin_alike(tmp_path: Path) -> None:
    rows = load(write(tmp_path, AZURE))
    plan = plan_of(rows, scenario_of("t", rows, 1.0, "m"), speed=1.0, jitter_s=0.0, seed=1)
    corpus = prompts.Corpus(1)
    texts = {prompts.question(session, 0, corpus)["content"][:9] for session in plan}
    assert len(texts) == 3


def test_jitter_moves_and_keeps_the_order_by_time(tmp_path: Path) -> None:
    rows = [Row(0.0, 10, 1)] * 50
    scenario = scenario_of("t", [*rows, Row(3.0, 1, 1)], 1.0, "m")
    plan = plan_of(rows, scenario, speed=1.0, jitter_s=3.0, seed=1)
    due = [session.due_s for session in plan]
    assert due == sorted(due)
    assert due[0] < 0.5
    assert due[-1] > 2.5
    assert shortened(Row(0, 5, 100), 7).output_tokens == 7


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"/none: No such file or directory$"):
        load(tmp_path / "none")


@pytest.mark.parametrize("said", ["ended before", "Error -3"])
def test_gzip_that_is_cut_or_broken(tmp_path: Path, said: str) -> None:
    data = bytearray(gzip.compress(AZURE.encode()))
    path = tmp_path / "trace"
    path.write_bytes(data[:30] if said == "ended before" else data[:10] + b"\xff" * 30)
    with pytest.raises(TraceError, match=f"{path}: .*{said}"):
        load(path)
