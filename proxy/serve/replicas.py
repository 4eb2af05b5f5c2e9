"""The replicas of one worker: registry, pool and router, changed together.

They are what the worker knows of the world outside, so they outlive configurations: a changed one
changes them in place. An exchange that began before therefore gives its lease back to the account
that new requests are judged by, and a retry of it goes only to replicas that still get requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backend.pool import Pool
from backend.registry import Registry, Roster
from backend.target import Target
from backend.token_probes import TokenProbes
from core.clock import Clock
from core.metrics import Metrics
from core.shared_probes import ProbeCell
from proxy.serve.core_link import CoreLink
from proxy.serve.kv_index import KvIndex
from proxy.serve.prepared import Prepared
from routing.config import ModelConfig
from routing.router import Router


@dataclass(frozen=True, slots=True)
class StagedReplicas:
    """What `Replicas.commit` puts in place. `cold`: nothing is known of what replicas hold."""

    prepared: Prepared
    roster: Roster
    targets: dict[str, Target]
    cold: bool


class Replicas:
    """`models` are those of the configuration in use. A model that it dropped keeps its replicas
    until `settle`, for exchanges that began with it and have none yet."""

    def __init__(self, prepared: Prepared, metrics: Metrics, clock: Clock, worker: int = 0) -> None:
        """`worker`: which one it is, of several."""
        config, contexts = prepared.config, prepared.upstream_tls
        self._prepared = prepared
        self._cells = _Cells(prepared, worker)
        self.registry = Registry(
            config.active,
            config.upstream,
            metrics,
            clock,
            contexts=contexts,
            cell_of=self._cells.of,
        )
        self.pool = Pool(config.active, config.upstream, metrics, clock, contexts)
        self.registry.hooks.on_refused = self._refused
        self.registry.hooks.activity = self.pool.activity
        memory = prepared.shared.host
        self._link = None if memory is None else CoreLink(memory, prepared, worker, metrics)
        host = None if self._link is None else self._link.host
        self.router = Router(config.routing, self.registry, metrics, clock, host)
        self.tokens = TokenProbes()
        self.kv = KvIndex(self.router.place, self._reports, metrics, clock)
        self._follow()
        self.models = _with_replicas(config.models)
        self._staged: StagedReplicas | None = None
        self._wanted: StagedReplicas | None = None

    def __repr__(self) -> str:
        return f"<Replicas {self.registry} {self.pool}>"

    async def start(self) -> None:
        await self.registry.start()
        await self.pool.start()
        self.kv.start()
        self.tokens.start()

    async def close(self) -> None:
        await self.tokens.close()
        await self.kv.close()
        await self.pool.close()
        await self.registry.close()
        if self._link is not None:
            self._link.close()

    def publish(self) -> None:
        """Bring the gauges up to date. To be called about once a second."""
        self.router.publish()
        if self._link is not None:
            self._link.review()

    def ready(self) -> str | None:
        return self.registry.ready(self.models)

    def stage(self, prepared: Prepared) -> StagedReplicas:
        """Replicas that are new are probed from now on. Raises ConfigError, with nothing left
        behind."""
        before, config = self._prepared, prepared.config
        self._cells.use(prepared)
        targets = self.pool.stage(config.active, config.upstream, prepared.upstream_tls)
        roster = self.registry.stage(config.active, config.upstream, prepared.upstream_tls)
        self._staged = StagedReplicas(prepared, roster, targets, before.cold_for(prepared))
        return self._staged

    def unready(self, staged: StagedReplicas) -> str | None:
        """Why `staged` could not serve yet, or not knowingly."""
        reason = self.registry.unready(staged.roster)
        if reason is None and (unasked := staged.roster.unasked()):
            reason = f"replica {', '.join(unasked)}: not asked yet"
        return reason

    def drop(self, staged: StagedReplicas) -> None:
        self._staged = None
        self._cells.use(self._prepared)
        self.registry.drop(staged.roster)

    def commit(self, staged: StagedReplicas) -> None:
        """Use what was staged. A plain call."""
        config = staged.prepared.config
        self.models = _with_replicas(config.models)
        if self._link is not None:
            self._link.use(staged.prepared)
        if staged.cold or config.routing != self._prepared.config.routing:
            self.router.use(config.routing, cold=staged.cold)
        self._prepared, self._wanted, self._staged = staged.prepared, staged, None
        self._follow()
        entries, targets = dict(staged.roster.entries), dict(staged.targets)
        for replica_id, entry in self.registry.entries.items():
            if entry.replica.model not in self.models and replica_id not in entries:
                entries[replica_id] = entry
                targets[replica_id] = self.pool.targets[replica_id]
        self._put(Roster(entries, config.upstream), targets)

    def settle(self) -> None:
        """No exchange is left that began before the last `commit`. Does nothing while something is
        staged, which may want what would go."""
        if self._wanted is not None and self._staged is None:
            wanted, self._wanted = self._wanted, None
            if wanted.roster.entries.keys() != self.registry.entries.keys():
                self._put(wanted.roster, wanted.targets)

    def _refused(self, replica_id: str) -> None:
        self.pool.refused(replica_id)
        self.tokens.refused(replica_id)

    def _reports(self, replica_id: str) -> bool:
        """Whether its metrics are those of an engine. One that has left does not report."""
        return replica_id in self.registry.entries and self.registry.load(replica_id) is not None

    def _follow(self) -> None:
        """Hear of those that tell what they hold, if anybody asks the index, and the core does not
        keep it; and ask which take token ids."""
        prepared = self._prepared
        config, routing = prepared.config, prepared.config.routing
        self.kv.use(
            config.active if routing.policy == "prefix_affinity" and not self._link else (),
            upstream=config.upstream,
            contexts=prepared.upstream_tls,
            start_of=prepared.prompter.start_of,
            hashing=prepared.marks.hashing,
            block_tokens=routing.block_tokens,
            tiers=[tier for tier, _ in routing.tiers.levels],
        )
        self.tokens.use(
            config.active,
            upstream=config.upstream,
            contexts=prepared.upstream_tls,
            samples_of=prepared.prompter.samples,
        )

    def _put(self, roster: Roster, targets: dict[str, Target]) -> None:
        gone = self.registry.commit(roster)
        self.pool.commit(targets, roster.config)
        for replica_id in gone:
            self.router.forget(replica_id)


class _Cells:
    """Where this worker hears from others, and tells them, how replicas are. Of one that is only
    staged it is known already."""

    def __init__(self, prepared: Prepared, worker: int) -> None:
        memory = prepared.shared.host
        self._probes = None if memory is None else memory.probes
        self._worker = worker
        self._places = prepared.places.by_id

    def use(self, prepared: Prepared) -> None:
        self._places = {**self._places, **prepared.places.by_id}

    def of(self, replica_id: str) -> ProbeCell | None:
        place = self._places.get(replica_id)
        if self._probes is None or place is None:
            return None
        return self._probes.cell(place, self._worker)


def _with_replicas(models: Sequence[ModelConfig]) -> tuple[str, ...]:
    """The names of those that have replicas of their own, which adapters have not."""
    return tuple(model.name for model in models if model.adapter_of is None)
