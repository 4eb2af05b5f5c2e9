"""Which of the eligible replicas gets a request. Pure: one class per policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import xxhash

from routing.config import RoutingConfig
from routing.index import PrefixIndex
from routing.member import NEVER, Member
from routing.score import Score, queue_seconds, score


class Wish(NamedTuple):
    """A request to place: `length` prompt tokens in `blocks`, `output` tokens expected."""

    length: int
    output: int
    blocks: Sequence[int]


class Choice(NamedTuple):
    """The chosen replica, how many prompt tokens it is believed to hold, and why."""

    member: Member
    cached: int
    score: Score | None


class Policy(Protocol):
    """`members` is never empty; the answer is one of them. Changes nothing but its own state.

    `by_prefix`: it asks the index, which must then be told of what is sent.
    """

    @property
    def by_prefix(self) -> bool: ...

    def choose(self, members: Sequence[Member], wish: Wish, now: float) -> Choice: ...


class RoundRobin:
    """Whoever waited longest."""

    by_prefix = False

    def __repr__(self) -> str:
        return "<RoundRobin>"

    def choose(self, members: Sequence[Member], wish: Wish, now: float) -> Choice:
        return Choice(min(members, key=_waiting), 0, None)


class LeastLoad:
    """The fewest requests in flight for its weight, then the fewest pending tokens."""

    by_prefix = False

    def __repr__(self) -> str:
        return "<LeastLoad>"

    def choose(self, members: Sequence[Member], wish: Wish, now: float) -> Choice:
        return Choice(min(members, key=_load), 0, None)


class PrefixAffinity:
    """The lowest cost by `score`, where a prefix that is already there makes a prefill cheaper.

    Costs within the tie window count as equal: then the longest match, then a rendezvous hash of
    the block that sets this prompt apart (so that gateways which know nothing of each other agree),
    then the fewest in flight. The order of `members` never matters.
    """

    by_prefix = True

    def __init__(self, config: RoutingConfig, index: PrefixIndex) -> None:
        self._index = index
        self._block_tokens = config.block_tokens
        self._knee = float(config.attention_knee_tokens)
        self._weight = config.decode_weight
        self._window = config.tie_window_s
        self._slow_start_s = config.slow_start_s

    def __repr__(self) -> str:
        return f"<PrefixAffinity {self._index}>"

    def choose(self, members: Sequence[Member], wish: Wish, now: float) -> Choice:
        blocks = wish.blocks
        mask = 0
        youngest = NEVER
        for member in members:
            mask |= member.entry.bit
            youngest = max(youngest, member.appeared_at)
        matches = self._index.match(blocks, mask)
        penalties = self._penalties(members, now) if now - youngest < self._slow_start_s else None
        best = float("inf")
        scored: list[tuple[Score, int, Member]] = []
        for number, member in enumerate(members):
            held = 0
            for group, count in matches:
                if group & member.entry.bit:
                    held = count
                    break
            cost = score(
                member.account,
                member.speed,
                length=wish.length,
                cached=held * self._block_tokens,
                output=wish.output,
                kv_tokens=member.kv_tokens,
                knee=self._knee,
                weight=self._weight,
                foreign_tokens=member.foreign_tokens,
                foreign_in_flight=member.audit.in_flight,
                slow_start=penalties[number] if penalties is not None else 0.0,
            )
            best = min(best, cost.total)
            scored.append((cost, held, member))
        limit = best + self._window
        tied = [entry for entry in scored if entry[0].total <= limit]
        if len(tied) > 1:
            tied = self._untie(tied, matches, blocks)
        cost, held, member = tied[0]
        return Choice(member, held * self._block_tokens, cost)

    def _penalties(self, members: Sequence[Member], now: float) -> list[float]:
        """Slow start: a replica that just came gets a share of the others' queues on top."""
        queues = [queue_seconds(m.account, m.speed, m.foreign_tokens) for m in members]
        mean = sum(queues) / len(queues)
        span = self._slow_start_s
        return [max(0.0, 1.0 - (now - member.appeared_at) / span) * mean for member in members]

    def _untie(
        self,
        tied: list[tuple[Score, int, Member]],
        matches: list[tuple[int, int]],
        blocks: Sequence[int],
    ) -> list[tuple[Score, int, Member]]:
        longest = max([held for _, held, _ in tied])
        tied = [entry for entry in tied if entry[1] == longest]
        if len(tied) == 1:
            return tied
        # Every replica holds the blocks before this one (a common system prompt).
        apart = min([count for _, count in matches])
        if apart < len(blocks):
            text = blocks[apart].to_bytes(8, "little")
            return [max(tied, key=lambda e: xxhash.xxh3_64_intdigest(text, e[2].key))]
        return [min(tied, key=lambda entry: _load(entry[2]))]


def make_policy(config: RoutingConfig, index: PrefixIndex) -> Policy:
    """The configured policy."""
    if config.policy == "round_robin":
        return RoundRobin()
    if config.policy == "least_load":
        return LeastLoad()
    return PrefixAffinity(config, index)


def _waiting(member: Member) -> tuple[int, int]:
    return member.last_pick, member.key


def _load(member: Member) -> tuple[float, int, int, int]:
    account = member.account
    load = (account.in_flight + member.audit.in_flight) / member.replica.weight
    return load, account.pending_tokens, member.last_pick, member.key
