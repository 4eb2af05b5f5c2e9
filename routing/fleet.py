"""The router's view of the replicas of one model as they come and go. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core.replica import Replica
from routing.config import RoutingConfig
from routing.index import PrefixIndex
from routing.learning import ModelSpeed
from routing.ledger import Ledger
from routing.member import NEVER, Member

# A replica away for longer was probably restarted: nothing of its cache is left.
_COLD_AFTER_S = 10.0
_FORGET_AFTER_S = 120.0
_SMOOTHING = 0.05
_OUTLIER = 11.0


class ModelFleet:
    """The members that serve one model. `output_tokens` and `uncached_tokens` are running means.

    `seen` are the candidates that `members` stand for; while they are the same object and nobody
    is `away`, `update` has nothing to do.
    """

    def __init__(
        self,
        config: RoutingConfig,
        index: PrefixIndex,
        on_gone: Callable[[Member], None],
        ledger: Ledger | None = None,
    ) -> None:
        self._config = config
        self._index = index
        self._ledger = ledger or Ledger()
        self._on_gone = on_gone
        self.seen: Sequence[Replica] | None = None
        self.away: dict[str, tuple[Member, float]] = {}
        self.members: list[Member] = []
        self.speeds = _speeds(config)
        self.output_tokens = config.priors.output_tokens
        self.uncached_tokens = 0.0

    def __repr__(self) -> str:
        return f"<ModelFleet {len(self.members)} here, {len(self.away)} away>"

    def update(self, replicas: Sequence[Replica], now: float) -> list[Member]:
        """The members for `replicas`, the candidates of this moment."""
        if replicas is not self.seen:
            self._change(replicas, now)
        if self.away:
            self._forget_old(now)
        return self.members

    def find(self, replica_id: str) -> Member | None:
        for member in self.members:
            if member.replica.id == replica_id:
                return member
        away = self.away.get(replica_id)
        return None if away is None else away[0]

    def known(self) -> list[Member]:
        """Those here and those away."""
        return [*self.members, *[member for member, _ in self.away.values()]]

    def forget(self, replica_id: str) -> None:
        """It was taken out of the configuration: if it comes back, it is new."""
        for member in self.members:
            if member.replica.id == replica_id:
                self.members.remove(member)
                self.seen = ()
                self._drop(member)
                return
        if (away := self.away.pop(replica_id, None)) is not None:
            self._drop(away[0])

    def use(self, config: RoutingConfig, index: PrefixIndex) -> None:
        """Go by `config` and `index` from now on; accounts stay as they are."""
        if config.priors != self._config.priors:
            self.speeds = _speeds(config)
            for member in self.known():
                member.speed = self.speeds.replica(member.replica.weight)
        self._config = config
        self._index = index
        for member in self.known():
            member.use(member.replica, config, index)

    def observed(self, output_tokens: int) -> None:
        """An answer ended with so many tokens. An outlier, or a figure that a replica made up,
        moves the mean by half at most."""
        if output_tokens > 0:
            bounded = min(output_tokens, _OUTLIER * self.output_tokens)
            self.output_tokens += _SMOOTHING * (bounded - self.output_tokens)

    def _change(self, replicas: Sequence[Replica], now: float) -> None:
        known = {member.replica.id: member for member in self.members}
        appeared_at = NEVER if self.seen is None else now
        self.seen = replicas
        self.members = []
        for replica in replicas:
            member = known.pop(replica.id, None)
            if member is None:
                member = self._returned(replica, now)
            if member is None:
                member = Member(
                    replica,
                    self._config,
                    index=self._index,
                    speeds=self.speeds,
                    appeared_at=appeared_at,
                    account=self._ledger.account(replica.id),
                )
            elif member.replica != replica:
                self._settings_changed(member, replica)
            member.replica = replica
            self.members.append(member)
        for member in known.values():
            self.away[member.replica.id] = (member, now)

    def _settings_changed(self, member: Member, replica: Replica) -> None:
        if member.replica.weight != replica.weight:
            self.speeds.forget(member.speed)
            member.speed = self.speeds.replica(replica.weight)
        member.use(replica, self._config, self._index)

    def _returned(self, replica: Replica, now: float) -> Member | None:
        away = self.away.pop(replica.id, None)
        if away is None:
            return None
        member, left_at = away
        # One that tells what it holds would have told.
        if now - left_at >= _COLD_AFTER_S and not member.entry.exact:
            self._index.remove(member.entry)
            capacity = member.kv_tokens // self._config.block_tokens
            member.entry = self._index.add(capacity, replica.id)
        member.appeared_at = now
        member.proven = False
        return member

    def _forget_old(self, now: float) -> None:
        for replica_id, (_, left_at) in list(self.away.items()):
            if now - left_at >= _FORGET_AFTER_S:
                self._drop(self.away.pop(replica_id)[0])

    def _drop(self, member: Member) -> None:
        member.gone = True
        self._index.remove(member.entry)
        self.speeds.forget(member.speed)
        self._on_gone(member)


def _speeds(config: RoutingConfig) -> ModelSpeed:
    priors = config.priors
    return ModelSpeed(
        priors.prefill_tokens_per_second,
        priors.decode_seconds_per_sequence,
        priors.decode_seconds_per_token,
    )
