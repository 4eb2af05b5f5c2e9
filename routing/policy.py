"""Which of the eligible replicas gets a request. Pure: one class per policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import xxhash

from routing.config import RoutingConfig
from routing.index import PrefixIndex
from routing.member import NEVER, Member
from routing.score import Score, Weights, Wish, queue_seconds, score


class Choice(NamedTuple):
    """The chosen replica, how many prompt tokens it is believed to hold, and why."""

    member: Member
    cached: int
    score: Score | None


_Scored = tuple[tuple[float, float, float, float, float, float], int, Member]
"""The terms of a `Score`, the leading blocks held, and by whom."""


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
        self._weights = Weights(float(config.attention_knee_tokens), config.decode_weight)
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
        scored: list[_Scored] = []
        weights, block_tokens = self._weights, self._block_tokens
        held = matches[0][1]
        alike = len(matches) == 1
        for number, member in enumerate(members):
            if not alike:
                held = _held(matches, member.entry.bit)
            penalty = 0.0 if penalties is None else penalties[number]
            cost = score(member, wish, held * block_tokens, weights, penalty)
            best = min(best, cost[0])
            scored.append((cost, held, member))
        limit = best + self._window
        tied = [entry for entry in scored if entry[0][0] <= limit]
        cost, held, member = tied[0] if len(tied) == 1 else _untie(tied, matches, blocks)
        return Choice(member, held * block_tokens, Score._make(cost))

    def _penalties(self, members: Sequence[Member], now: float) -> list[float]:
        """Slow start: a replica that just came gets a share of the others' queues on top."""
        queues = [queue_seconds(member) for member in members]
        mean = sum(queues) / len(queues)
        span = self._slow_start_s
        return [max(0.0, 1.0 - (now - member.appeared_at) / span) * mean for member in members]


def _held(matches: list[tuple[int, int]], bit: int) -> int:
    for group, count in matches:
        if group & bit:
            return count
    return 0


def _untie(tied: list[_Scored], matches: list[tuple[int, int]], blocks: Sequence[int]) -> _Scored:
    longest = max([held for _, held, _ in tied])
    tied = [entry for entry in tied if entry[1] == longest]
    if len(tied) == 1:
        return tied[0]
    # Every replica holds the blocks before this one (a common system prompt).
    apart = min([count for _, count in matches])
    if apart < len(blocks):
        text = blocks[apart].to_bytes(8, "little")
        return max(tied, key=lambda entry: xxhash.xxh3_64_intdigest(text, entry[2].key))
    return min(tied, key=lambda entry: _load(entry[2]))


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
    load = (account.in_flight + member.foreign_in_flight) / member.replica.weight
    return load, account.pending_tokens, member.last_pick, member.key
