"""Which of the eligible replicas gets a request. Pure: one class per policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from xxhash import xxh3_64_intdigest

from routing.config import RoutingConfig
from routing.index import PrefixIndex
from routing.member import NEVER, Member
from routing.score import Score, Terms, Weights, Wish, favoured, queue_seconds, scores

_CROWD = 2.0

Choice = tuple[Member, int, Terms | None]
"""The chosen replica, how many prompt tokens it is believed to hold, and why (see `Score`)."""


class Policy(Protocol):
    """`members` is never empty; the answer is one of them. Changes nothing but its own state.

    `by_prefix`: it asks the index, which must then be told of what is sent.
    """

    @property
    def by_prefix(self) -> bool: ...

    def choose(
        self, members: Sequence[Member], wish: Wish, now: float, last: str | None = None
    ) -> Choice:
        """`last`: the replica that served the same session last, if any did."""

    def weigh(
        self, members: Sequence[Member], wish: Wish, now: float, last: str | None = None
    ) -> list[tuple[int, Score | None]]:
        """What it makes of each: the tokens believed to be there, and the score, if it has any."""

    def cached(self, members: Sequence[Member], wish: Wish) -> int:
        """How many tokens of the prompt are believed to be somewhere."""

    def offer(
        self,
        members: Sequence[Member],
        room: Sequence[Member],
        wish: Wish,
        now: float,
        *,
        waiting: int = 0,
    ) -> tuple[float, Choice]:
        """As `choose`, of those of `members` that have `room`, for a request that may go on
        waiting instead; and what it costs in seconds to take that one now. `waiting`: how many
        requests wait."""


class RoundRobin:
    """Whoever waited longest."""

    by_prefix = False

    def __repr__(self) -> str:
        return "<RoundRobin>"

    def choose(
        self, members: Sequence[Member], wish: Wish, now: float, last: str | None = None
    ) -> Choice:
        return min(members, key=_waiting), 0, None

    def weigh(
        self, members: Sequence[Member], wish: Wish, now: float, last: str | None = None
    ) -> list[tuple[int, Score | None]]:
        return [(0, None)] * len(members)

    def cached(self, members: Sequence[Member], wish: Wish) -> int:
        return 0

    def offer(
        self,
        members: Sequence[Member],
        room: Sequence[Member],
        wish: Wish,
        now: float,
        *,
        waiting: int = 0,
    ) -> tuple[float, Choice]:
        return 0.0, self.choose(room, wish, now)


class LeastLoad:
    """The fewest requests in flight for its weight, then the fewest pending tokens."""

    by_prefix = False

    def __repr__(self) -> str:
        return "<LeastLoad>"

    def choose(
        self, members: Sequence[Member], wish: Wish, now: float, last: str | None = None
    ) -> Choice:
        return min(members, key=_load), 0, None

    def weigh(
        self, members: Sequence[Member], wish: Wish, now: float, last: str | None = None
    ) -> list[tuple[int, Score | None]]:
        return [(0, None)] * len(members)

    def cached(self, members: Sequence[Member], wish: Wish) -> int:
        return 0

    def offer(
        self,
        members: Sequence[Member],
        room: Sequence[Member],
        wish: Wish,
        now: float,
        *,
        waiting: int = 0,
    ) -> tuple[float, Choice]:
        return 0.0, self.choose(room, wish, now)


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
        self._weights = Weights(float(config.attention_knee_tokens), config.others_weight)
        self._window = config.tie_window_s
        self._slow_start_s = config.slow_start_s
        self._session_bonus_s = config.session_bonus_s
        self._slower = tuple(worth for _, worth in config.tiers.levels[1:])

    def __repr__(self) -> str:
        return f"<PrefixAffinity {self._index}>"

    def choose(
        self, members: Sequence[Member], wish: Wish, now: float, last: str | None = None
    ) -> Choice:
        blocks, matches, cached, newest_at = self._look(members, wish)
        costs = self._costs(members, wish, cached, newest_at=newest_at, now=now, last=last)
        limit = min(costs)[0] + self._window
        tied = [number for number, cost in enumerate(costs) if cost[0] <= limit]
        chosen = tied[0] if len(tied) == 1 else _untie(tied, members, cached, matches, blocks)
        return members[chosen], cached[chosen], costs[chosen]

    def weigh(
        self, members: Sequence[Member], wish: Wish, now: float, last: str | None = None
    ) -> list[tuple[int, Score | None]]:
        _, _, cached, newest_at = self._look(members, wish)
        costs = self._costs(members, wish, cached, newest_at=newest_at, now=now, last=last)
        return [(held, Score._make(cost)) for held, cost in zip(cached, costs, strict=True)]

    def cached(self, members: Sequence[Member], wish: Wish) -> int:
        return max(self._look(members, wish)[2])

    def offer(
        self,
        members: Sequence[Member],
        room: Sequence[Member],
        wish: Wish,
        now: float,
        *,
        waiting: int = 0,
    ) -> tuple[float, Choice]:
        """The cost is what is ahead, what others suffer, and what of the prompt would have to be
        computed anew that another replica holds; not its own prefill, which it needs anywhere.

        What is computed anew delays all that wait. What others suffer counts for less: it speaks
        for short prompts, and would leave the long ones to their deadlines. (Both simulated.)
        """
        _, _, everywhere, newest_at = self._look(members, wish)
        most = max(everywhere)
        held = dict(zip(members, everywhere, strict=True))
        cached = [held[member] for member in room]
        starting = newest_at > now - self._slow_start_s
        penalties = self._penalties(room, now) if starting else None
        terms = scores(room, wish, cached, self._weights, penalties)
        weight = self._weights.others / 4
        best: tuple[float, int] | None = None
        crowd = 1.0 + _CROWD * waiting / len(members)
        for number, (_, queue, _, others, _, slow_start, _) in enumerate(terms):
            regret = (most - cached[number]) / room[number].speed.prefill_rate
            cost = queue + crowd * regret + weight * others + slow_start
            if best is None or cost < best[0]:
                best = cost, number
        assert best is not None
        cost, number = best
        return cost, (room[number], cached[number], terms[number])

    def _look(
        self, members: Sequence[Member], wish: Wish
    ) -> tuple[Sequence[int], list[tuple[int, int]], list[int], float]:
        """The blocks that can be found, what the index says of them, how many tokens each member
        holds, and when the newest of them appeared."""
        blocks, block_tokens = wish[2], self._block_tokens
        mask = 0
        newest_at = NEVER
        for member in members:
            mask |= member.entry.bit
            newest_at = max(newest_at, member.appeared_at)
        if len(blocks) * block_tokens >= wish[0]:
            blocks = blocks[:-1]  # an engine computes the last token anyway, so it never finds it
        if self._slower:
            matches, cached = self._look_by_tiers(members, blocks, mask)
            return blocks, matches, cached, newest_at
        matches = self._index.match(blocks, mask)
        if len(matches) == 1:
            return blocks, matches, [matches[0][1] * block_tokens] * len(members), newest_at
        cached = []
        for member in members:
            bit = member.entry.bit
            for group, count in matches:
                if group & bit:
                    cached.append(count * block_tokens)
                    break
        return blocks, matches, cached, newest_at

    def _look_by_tiers(
        self, members: Sequence[Member], blocks: Sequence[int], mask: int
    ) -> tuple[list[tuple[int, int]], list[int]]:
        """What is only in a slower tier counts for less: pairs as of `match`, and tokens' worth."""
        every = mask
        for member in members:
            for one in member.entry.slower:
                every |= one.bit
        matches = self._index.match(blocks, every)
        cached = []
        for member in members:
            most = _count(matches, member.entry.bit)
            worth = float(most)
            for one, weight in zip(member.entry.slower, self._slower, strict=True):
                count = _count(matches, one.bit)
                worth += weight * max(count - most, 0)
                most = max(count, most)
            cached.append(int(worth * self._block_tokens))
        return [(group & mask, count) for group, count in matches if group & mask], cached

    def _costs(
        self,
        members: Sequence[Member],
        wish: Wish,
        cached: Sequence[int],
        *,
        newest_at: float,
        now: float,
        last: str | None,
    ) -> list[Terms]:
        starting = newest_at > now - self._slow_start_s
        penalties = self._penalties(members, now) if starting else None
        costs = scores(members, wish, cached, self._weights, penalties)
        if last is not None:
            for number, member in enumerate(members):
                if member.replica.id == last:
                    costs[number] = favoured(costs[number], self._session_bonus_s)
        return costs

    def _penalties(self, members: Sequence[Member], now: float) -> list[float]:
        """Slow start: a replica that just came gets a share of the others' queues on top."""
        queues = [queue_seconds(member) for member in members]
        mean = sum(queues) / len(queues)
        span = self._slow_start_s
        return [max(0.0, 1.0 - (now - member.appeared_at) / span) * mean for member in members]


def _count(matches: Sequence[tuple[int, int]], bit: int) -> int:
    return next(count for group, count in matches if group & bit)


def _untie(
    tied: Sequence[int],
    members: Sequence[Member],
    cached: Sequence[int],
    matches: Sequence[tuple[int, int]],
    blocks: Sequence[int],
) -> int:
    """The place among `members` of the one to take, of those at the places `tied`."""
    apart = matches[0][1]
    if len(matches) > 1:
        longest = max([cached[number] for number in tied])
        tied = [number for number in tied if cached[number] == longest]
        if len(tied) == 1:
            return tied[0]
        # Every replica holds the blocks before this one (a common system prompt).
        apart = min([count for _, count in matches])
    if apart < len(blocks):
        text = blocks[apart].to_bytes(8, "little")
        return max([(xxh3_64_intdigest(text, members[number].key), number) for number in tied])[1]
    return min([(_load(members[number]), number) for number in tied])[1]


def make_index(config: RoutingConfig) -> PrefixIndex:
    """One of a process's own, as the configured policy reads it."""
    return PrefixIndex(config.index_entries, slower=config.tiers.slower)


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
