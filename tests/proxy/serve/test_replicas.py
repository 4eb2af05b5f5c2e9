from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from core.errors import ConfigError, UpstreamError
from core.loading import convert
from core.metrics import Metrics
from core.prompt import Prompt
from proxy.serve.config import Config
from proxy.serve.prepared import Prepared, prepare
from proxy.serve.replicas import Replicas, StagedReplicas
from routing.eligibility import UNPROVEN_IN_FLIGHT
from routing.lease import Lease


class Bench:
    """Replicas that nobody starts, so that nothing is asked or opened."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.metrics = Metrics.private()
        self.prepared: Prepared = prepare(config("m", "r0 r1"))
        self.replicas = Replicas(self.prepared, self.metrics, lambda: self.now)

    def stage(self, changed: Config) -> StagedReplicas:
        self.prepared = prepare(changed, previous=self.prepared)
        return self.replicas.stage(self.prepared)

    def change(self, changed: Config) -> None:
        self.replicas.commit(self.stage(changed))

    def pick(self, model: str = "m", blocks: tuple[int, ...] = (1, 2, 3)) -> Lease:
        prompt = Prompt(model, 200, 200, True, blocks, 64)
        return self.replicas.router.pick(model=model, prompt=prompt, max_output_tokens=10)

    def ids(self, model: str = "m") -> list[str]:
        return [replica.id for replica in self.replicas.registry.candidates(model)]

    @property
    def targets(self) -> list[str]:
        return sorted(self.replicas.pool.targets)


def config(model: str, ids: str, urls: Mapping[str, str] | None = None, **sections: Any) -> Config:
    """One model, and its replicas by their ids."""
    replicas = [
        {"url": (urls or {}).get(name, f"http://{name}"), "model": model, "id": name}
        for name in ids.split()
    ]
    document = {
        "listen": {"addresses": ["127.0.0.1:8080"], "tls": "off"},
        "auth": "none",
        "workers": 1,
        "models": [{"name": model}],
        "replicas": replicas,
        **sections,
    }
    return convert(document, Config, "/")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_accounts_circuits_and_prefixes_of_those_that_stay_are_kept(bench: Bench) -> None:
    first = bench.pick()
    first.first_token(bench.now)
    bench.replicas.registry.member("r0").health.seen = True
    member = bench.replicas.registry.member("r0")
    bench.change(config("m", "r0 r1 r2"))
    assert bench.ids() == ["r0", "r1", "r2"]
    assert bench.replicas.registry.member("r0") is member
    again = bench.pick()
    assert (again.replica.id, again.predicted_cached) == (first.replica.id, 192)
    assert again.member.account.in_flight == 2
    for lease in (first, again):
        lease.release()
    assert again.member.account.in_flight == 0
    assert bench.metrics.value("headrace_ledger_underflow_total") == 0


def test_one_that_is_removed_is_gone_at_once(bench: Bench) -> None:
    lease = bench.pick()
    kept = "r1" if lease.replica.id == "r0" else "r0"
    bench.change(config("m", kept))
    assert lease.outlived
    assert (bench.ids(), bench.targets) == ([kept], [kept])
    assert bench.pick().replica.id == kept
    lease.release()


def test_another_server_under_an_id_starts_anew(bench: Bench) -> None:
    lease = bench.pick()
    member = bench.replicas.registry.member(lease.replica.id)
    target = bench.replicas.pool.targets[lease.replica.id]
    bench.change(config("m", "r0 r1", urls={lease.replica.id: "http://elsewhere"}))
    assert lease.outlived
    assert bench.replicas.registry.member(lease.replica.id) is not member
    assert bench.replicas.pool.targets[lease.replica.id] is not target
    lease.release()


def test_a_dropped_model_keeps_its_replicas_until_settled(bench: Bench) -> None:
    bench.change(config("n", "r2"))
    assert (bench.ids("m"), bench.ids("n")) == (["r0", "r1"], ["r2"])
    assert bench.replicas.models == ("n",)
    assert "model n" in (bench.replicas.ready() or "")
    bench.pick().release()
    bench.change(config("o", "r3"))
    assert bench.targets == ["r0", "r1", "r2", "r3"]
    bench.replicas.settle()
    assert (bench.ids("m"), bench.ids("n"), bench.targets) == ([], [], ["r3"])
    bench.replicas.settle()
    assert bench.targets == ["r3"]


def test_an_id_that_a_new_model_needs_is_not_kept(bench: Bench) -> None:
    bench.change(config("n", "r0"))
    assert (bench.ids("m"), bench.ids("n")) == (["r1"], ["r0"])


def test_nothing_is_settled_while_something_is_staged(bench: Bench) -> None:
    bench.change(config("n", "r2"))
    staged = bench.stage(config("m", "r0"))
    target = bench.replicas.pool.targets["r0"]
    bench.replicas.settle()
    assert bench.targets == ["r0", "r1", "r2"]
    bench.replicas.commit(staged)
    assert bench.replicas.pool.targets["r0"] is target
    bench.replicas.settle()
    assert bench.targets == ["r0"]
    dropped = bench.stage(config("n", "r2"))
    bench.replicas.settle()
    bench.replicas.drop(dropped)
    assert (bench.ids("m"), bench.targets) == (["r0"], ["r0"])


@pytest.mark.parametrize(
    ("routing", "cached"),
    [
        ({"decode_weight": 0.5}, 192),
        ({"block_tokens": 128}, 0),
        ({"policy": "least_load"}, 0),
    ],
)
def test_prefixes_are_forgotten_when_they_would_not_be_true(
    bench: Bench, routing: dict[str, Any], cached: int
) -> None:
    with bench.pick() as lease:
        lease.first_token(bench.now)
    bench.change(config("m", "r0 r1", routing=routing))
    bench.change(config("m", "r0 r1"))
    with bench.pick() as lease:
        assert lease.predicted_cached == cached


def test_a_fault_leaves_nothing_behind(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "good")
    replica = {"url": "http://r9", "model": "m", "api_key": "env:KEY"}
    changed = prepare(config("m", "", replicas=[replica]), previous=bench.prepared)
    monkeypatch.setenv("KEY", "not good")
    with pytest.raises(ConfigError, match="visible ASCII"):
        bench.replicas.stage(changed)
    bench.change(config("n", "r2"))
    bench.replicas.settle()
    assert bench.targets == ["r2"]


def test_one_that_recovers_starts_slowly(bench: Bench) -> None:
    registry = bench.replicas.registry
    bench.pick().release()
    for _ in range(10):
        registry.succeeded("r0")
        registry.failed("r0", UpstreamError("It answered with an error."))
    assert bench.ids() == ["r1"]
    assert {bench.pick(blocks=(n, n + 1)).replica.id for n in range(8)} == {"r1"}
    bench.now += 1.0
    offered = [bench.ids() for _ in range(3)]
    assert offered == [["r0", "r1"], ["r1"], ["r1"]], "one request in a while may try it"
    registry.succeeded("r0")
    leases = [bench.pick(blocks=(n, n + 1)) for n in range(100, 130)]
    there = [lease for lease in leases if lease.replica.id == "r0"]
    assert len(there) == UNPROVEN_IN_FLIGHT
    there[0].first_token(bench.now + 0.1)
    after = {bench.pick(blocks=(n, n + 1)).replica.id for n in range(200, 210)}
    assert "r0" in after
