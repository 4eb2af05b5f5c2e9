"""Studies, tables and pages, run in this process."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from routing.simulator.engine import EngineModel
from routing.simulator.figures import Run
from routing.simulator.page import page
from routing.simulator.study import Setup, find_replicas, simulate, study
from routing.simulator.table import document, table
from routing.simulator.trace import sample

TRACE = sample(sessions=12)
SEEDS = (1, 2)


def run(
    setup: Setup, policies: Sequence[str], seeds: Sequence[int]
) -> Mapping[tuple[str, int], Run]:
    return {(name, seed): simulate(TRACE, setup, name, seed) for name in policies for seed in seeds}


ROWS = study(run, Setup(replicas=3, speed=4.0), ["prefix_affinity", "round_robin", "oracle"], SEEDS)


def test_our_own_beats_round_robin_and_the_oracle_has_no_regret() -> None:
    own, turns, oracle = (row.figures for row in ROWS)
    assert own["ttft_mean"].mean < turns["ttft_mean"].mean
    assert own["hit"].mean > turns["hit"].mean
    assert oracle["regret"].mean == 0.0
    assert turns["regret"].mean > 0.0


def test_a_table_has_a_line_for_each_policy() -> None:
    lines = table(ROWS).splitlines()
    assert [line.split()[0] for line in lines] == ["policy", *(row.policy for row in ROWS)]
    assert "regret %" in lines[0]
    assert "shed" not in lines[0]  # nothing was
    assert re.search(r"\d±\d", lines[1])


def test_a_document_has_means_and_intervals() -> None:
    first = document(ROWS)[0]
    assert first["policy"] == "prefix_affinity"
    assert first["goodput"] == {
        "mean": ROWS[0].figures["goodput"].mean,
        "ci95": ROWS[0].figures["goodput"].half,
    }


def test_a_page_needs_nothing_else() -> None:
    text = page("<Title>", ["x & y"], [replace(ROWS[0], policy="a<b"), *ROWS[1:]])
    assert "&lt;Title&gt;" in text
    assert "x &amp; y" in text
    assert "http" not in text
    charts = re.findall(r"<svg.*?</svg>", text, re.S)
    assert len(charts) == 5
    for chart in charts:
        ElementTree.fromstring(chart)


def test_the_fewest_replicas_are_found() -> None:
    setup = Setup(speed=40.0, model=EngineModel(prefill_rate=8000.0))
    slo = {"ttft_p99": 4.0}
    found = find_replicas(run, setup, "prefix_affinity", SEEDS, slo)
    assert found is not None
    count, row = found
    assert count > 1
    assert row.figures["ttft_p99"].mean <= 4.0
    fewer = study(run, replace(setup, replicas=count - 1), ["prefix_affinity"], SEEDS)
    assert fewer[0].figures["ttft_p99"].mean > 4.0


def test_no_number_of_replicas_makes_a_prompt_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("routing.simulator.study.MOST_REPLICAS", 4)
    assert find_replicas(run, Setup(), "prefix_affinity", SEEDS, {"ttft_p99": 0.1}) is None
