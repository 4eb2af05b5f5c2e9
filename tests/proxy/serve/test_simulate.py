"""The command, with one process for each run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proxy.serve.__main__ import EXIT_CONFIG, main

FEW = ["sample", "--requests", "24", "--seeds", "1", "--jobs", "1"]
OURS = [*FEW, "--policies", "prefix_affinity"]


def test_a_table_a_page_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    chosen = [*FEW, "--policies", "prefix_affinity,round_robin,oracle"]
    assert main(["simulate", *chosen, "--html", str(page), "--slow", "2"]) == 0
    said = capsys.readouterr().out
    assert "24 requests at x1, 8 replicas, 1 seeds" in said
    assert "with slow=2" in said
    assert said.count("\n") == 8
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert main(["simulate", *chosen, "--json", "--engine", "chunk=4096"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["policy"] for row in told["policies"]][1] == "round_robin"
    assert told["policies"][2]["regret"] == {"mean": 0.0, "ci95": 0.0}


def test_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *FEW, "--find-replicas", "--slo", "ttft_p99=9,goodput=0.5"]) == 0
    assert "prefix_affinity: 1 replicas keep ttft_p99=9, goodput=0.5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.jsonl"], "none.jsonl: cannot be read"),
        (["sample", "--policies", "dynmo"], "did you mean `dynamo`"),
        ([*OURS, "--replicas", "0"], "--replicas: must be above 0"),
        ([*OURS, "--engine", "chunk"], "--engine: expected name=number, not `chunk`"),
        ([*OURS, "--engine", "chnk=1"], "--engine: "),
        ([*OURS, "--find-replicas"], "--find-replicas needs --slo"),
        ([*OURS, "--find-replicas", "--slo", "p99=1"], "`p99` is none of"),
        ([*OURS, "--html", "/nowhere/x.html"], "--html: /nowhere/x.html: No such file"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *arguments]) == EXIT_CONFIG
    assert said in capsys.readouterr().err
