"""The replicas of the configuration in use: who they are, what they can take, how they are.

What a circuit decides is in `health`, what is known of one replica in `member`. A changed
configuration is taken over in two steps: `stage` makes what is new and begins to probe it, `commit`
is a plain call that lets the router see it. What is known of a replica that stays, stays.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Hashable, Mapping, Sequence

from backend.circuit_meters import CircuitMeters
from backend.config import ReplicaConfig, ScrapeConfig, UpstreamConfig
from backend.health import ModelHealth
from backend.member import Hooks, Member, server_of
from backend.monitor import Monitor
from backend.upstream_tls import build_contexts
from core.clock import Clock
from core.errors import ConfigError, GatewayError
from core.identity import identity
from core.metrics import Metrics
from core.replica import Load, Replica
from core.shared_probes import ProbeCell
from core.tasks import spawn

STALE_SCRAPES = 3
"""A load is forgotten after so many scrape intervals."""


class Entry:
    """One replica of a roster. `watching`: how it is asked, to tell whether that has changed."""

    __slots__ = ("member", "monitor", "replica", "watching")

    def __init__(
        self, replica: Replica, member: Member, monitor: Monitor, watching: Hashable
    ) -> None:
        self.replica = replica
        self.member = member
        self.monitor = monitor
        self.watching = watching

    def __repr__(self) -> str:
        return f"<Entry {self.member}>"


class Roster:
    """Replicas by id, as a configuration wants them."""

    def __init__(self, entries: Mapping[str, Entry], config: UpstreamConfig) -> None:
        self.entries = dict(entries)
        self.config = config

    def __repr__(self) -> str:
        return f"<Roster {list(self.entries)}>"

    def unasked(self) -> list[str]:
        """Ids of those of which it is not known yet how they are."""
        if not self.config.active_health:
            return []
        return [
            replica_id
            for replica_id, entry in self.entries.items()
            if not entry.member.present and not entry.member.probed_once
        ]

    def models(self) -> dict[str, ModelHealth]:
        """By name, in the order of the configuration."""
        members: dict[str, list[Member]] = {}
        for entry in self.entries.values():
            members.setdefault(entry.replica.model, []).append(entry.member)
        return {
            name: ModelHealth((member.health for member in same), self.config.health)
            for name, same in members.items()
        }


class Registry:
    """A fleet: candidates and loads for the router, results from the pipeline.

    `on_refused` is called with the id of a replica whenever it refuses a connection, so that its
    silent streams can be failed (`Pool.refused`). `activity` (`Pool.activity`) tells flowing
    streams from a silent replica; without it only ended exchanges count. Both may be set later,
    in `hooks`. `cell_of` tells where the workers share what they hear of a replica, if they do.
    """

    def __init__(
        self,
        replicas: Sequence[ReplicaConfig],
        config: UpstreamConfig,
        metrics: Metrics,
        clock: Clock,
        *,
        contexts: Mapping[str, ssl.SSLContext] | None = None,
        activity: Callable[[str], int] | None = None,
        on_refused: Callable[[str], None] | None = None,
        cell_of: Callable[[str], ProbeCell | None] | None = None,
    ) -> None:
        """`contexts`: as `build_contexts` made them. Raises ConfigError for doubled ids."""
        self.hooks = Hooks(activity, on_refused)
        self.hooks.on_doubt = self._doubt
        self._cell_of = cell_of
        self._clock = clock
        self._models: dict[str, ModelHealth] = {}
        self._started = False
        self._endings: set[asyncio.Task[None]] = set()
        self._meters = CircuitMeters(metrics)
        self._roster = Roster({}, config)
        self._load_lives_s = 0.0
        self.commit(self.stage(replicas, config, contexts))

    def __repr__(self) -> str:
        return f"<Registry {list(self._models.values())}>"

    # --- the router's side

    def candidates(self, model: str) -> Sequence[Replica]:
        """The replicas that may get a request now, in a stable order; none for unknown names."""
        health = self._models.get(model)
        if health is None:
            return ()
        return health.candidates(self._clock()) if health.troubled else health.everyone

    def ids_of(self, model: str) -> list[str]:
        """Every replica of `model`, whether it is well or not."""
        entries = self.entries.items()
        return [replica_id for replica_id, entry in entries if entry.replica.model == model]

    def load(self, replica_id: str) -> Load | None:
        """What it last reported, while that is fresh."""
        load = self.member(replica_id).load
        if load is None or self._clock() - load.observed_at > self._load_lives_s:
            return None
        return load

    def models(self) -> tuple[str, ...]:
        """Names of the models that have replicas, in configuration order."""
        return tuple(self._models)

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The roster in use, by id."""
        return self._roster.entries

    def member(self, replica_id: str) -> Member:
        """Raises KeyError for an unknown id."""
        return self._roster.entries[replica_id].member

    # --- the life of the gateway

    async def start(self) -> None:
        """Start probing and scraping in the background; the first probes go out at once."""
        self._started = True
        for entry in self._roster.entries.values():
            entry.monitor.start()

    async def close(self) -> None:
        self._started = False
        for entry in self._roster.entries.values():
            self._end(entry.monitor)
        if self._endings:
            await asyncio.wait(self._endings)

    def ready(self, models: Sequence[str] | None = None) -> str | None:
        """None, or which model (of `models`, by default of all) has no usable replica. Before the
        first answer nothing is ready."""
        return _reason(self._models, self._roster.config, models)

    # --- another configuration

    def stage(
        self,
        replicas: Sequence[ReplicaConfig],
        config: UpstreamConfig,
        contexts: Mapping[str, ssl.SSLContext] | None = None,
    ) -> Roster:
        """What `commit` needs. Once the registry was started, replicas that are new are probed
        from now on. Raises ConfigError, with nothing left behind."""
        if contexts is None:
            contexts = build_contexts(replicas)
        entries: dict[str, Entry] = {}
        for replica in replicas:
            entry = self._entry(replica, config, contexts.get(replica.replica.id))
            if entry.replica.id in entries:
                raise ConfigError(
                    f"two replicas have the id {entry.replica.id}; give them an `id` each"
                )
            entries[entry.replica.id] = entry
        roster = Roster(entries, config)
        if self._started:
            for entry in entries.values():
                if not entry.member.present:
                    entry.monitor.start()
        return roster

    def commit(self, roster: Roster) -> list[str]:
        """Replace the replicas in use. Returns the ids under which nobody is left, or somebody
        else."""
        before = self._roster.entries
        self._roster = roster
        scrape = roster.config.metrics
        interval_s = scrape.interval_s if isinstance(scrape, ScrapeConfig) else 0.0
        self._load_lives_s = STALE_SCRAPES * interval_s
        proven = {e.replica.model for e in roster.entries.values() if e.member.health.seen}
        for replica_id, entry in roster.entries.items():
            meter = self._meters.of(replica_id)
            probed = self._started and roster.config.active_health
            if probed and not entry.member.present and entry.replica.model in proven:
                entry.member.await_proof()
            entry.member.join(entry.replica, roster.config.health, meter)
            if self._started:
                entry.monitor.start()
        self._models = roster.models()
        for entry in roster.entries.values():
            entry.member.model = self._models[entry.replica.model]
        for model in self._models.values():
            model.review()
        gone = []
        for replica_id, old in before.items():
            new = roster.entries.get(replica_id)
            if new is None or new.monitor is not old.monitor:
                self._end(old.monitor)
            if new is None or new.member is not old.member:
                old.member.leave()
                gone.append(replica_id)
            if new is None:
                self._meters.remove(replica_id)
        return gone

    def drop(self, roster: Roster) -> None:
        """It will not be committed."""
        kept = {id(entry.monitor) for entry in self._roster.entries.values()}
        for entry in roster.entries.values():
            if id(entry.monitor) not in kept:
                self._end(entry.monitor)

    def unready(self, roster: Roster) -> str | None:
        """As `ready`, if `roster` were in use."""
        return _reason(roster.models(), roster.config, None)

    def _entry(
        self, config: ReplicaConfig, upstream: UpstreamConfig, context: ssl.SSLContext | None
    ) -> Entry:
        replica = config.replica
        old = self._roster.entries.get(replica.id)
        watching = (
            identity((config.url, config.protocol, config.tls, config.api_key)),
            config.data_parallel_rank,
            config.engine,
            upstream.health,
            upstream.metrics,
            upstream.active_health,
            upstream.timeouts,
            upstream.http2_engine,
        )
        if old is None or old.member.server != server_of(config):
            member = Member(config, upstream.health, self.hooks, self._clock)
        else:
            member = old.member
            if old.watching == watching:
                return Entry(replica, member, old.monitor, watching)
        cell = None if self._cell_of is None else self._cell_of(replica.id)
        monitor = Monitor(config, upstream, member, context, self._clock, cell=cell)
        return Entry(replica, member, monitor, watching)

    def _doubt(self, replica_id: str) -> None:
        """Have whoever looks next ask it at once."""
        if self._cell_of is not None and (cell := self._cell_of(replica_id)) is not None:
            cell.doubt(self._clock())

    def _end(self, monitor: Monitor) -> None:
        if not monitor.started:
            return
        ending = spawn(monitor.close(), "monitor-close")
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    # --- results of exchanges

    def succeeded(self, replica_id: str) -> None:
        """An exchange with it worked (any answer below 500 that came whole, or is flowing)."""
        self.member(replica_id).succeeded()

    def failed(self, replica_id: str, error: GatewayError) -> None:
        """An exchange with it failed; an error that is not the replica's counts for nothing."""
        self.member(replica_id).failed(error)


def _reason(
    models: Mapping[str, ModelHealth], config: UpstreamConfig, wanted: Sequence[str] | None
) -> str | None:
    for name, model in models.items():
        if wanted is not None and name not in wanted:
            continue
        if not model.usable():
            return f"model {name}: no usable replica, all {len(model.members)} are down"
        if config.active_health and not model.answered():
            return f"model {name}: no replica has answered yet"
    for name in wanted or ():
        if name not in models:
            return f"model {name}: it has no replica"
    return None
