"""Alerts and dashboard name metrics, labels and files that exist."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from running import ROOT

FOLDER = ROOT / "configs" / "prometheus"
NAME = re.compile(r"\bheadrace_[a-z_]+")
PRODUCT = ("core", "auth", "ratelimit", "routing", "backend", "proxy")


def expressions() -> dict[str, list[str]]:
    alerts = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    rules = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    board = json.loads((FOLDER / "dashboard.json").read_text())
    panels = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return {"alerts": rules, "dashboard": panels}


@pytest.mark.parametrize("kind", ["alerts", "dashboard"])
def test_each_metric_is_one_of_the_gateways(kind: str) -> None:
    sources = "".join(
        path.read_text() for package in PRODUCT for path in (ROOT / package).rglob("*.py")
    )
    known = {name[1:-1] for name in re.findall(r'"headrace_[a-z_]+"', sources)}
    wanted = {name for text in expressions()[kind] for name in NAME.findall(text)}
    assert wanted
    assert {re.sub(r"_bucket$", "", name) for name in wanted} <= known


def test_recorded_series_are_recorded() -> None:
    alerts = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    recorded = {
        rule["record"] for group in alerts["groups"] for rule in group["rules"] if "record" in rule
    }
    texts = [text for kind in expressions().values() for text in kind]
    assert set(re.findall(r"headrace:\w+:\w+", " ".join(texts))) == recorded
