"""The token bucket, in integers. Pure; `bucket.lua` is the same arithmetic inside Redis.

A bucket is a level (in units, a millionth of a token) at an instant (microseconds of any clock).
`refill` tokens flow in per window, up to its capacity. A level below zero is a debt: more was used
than had been reserved. All values stay below 2^53, so that Lua's doubles hold them.

Clocks may step. An instant ahead of now gains nothing until now has caught up, but is believed for
no longer than one filling of the bucket: a step neither refills nor blocks for more than one burst.
"""

from __future__ import annotations

from typing import Final, NamedTuple

UNITS: Final = 1_000_000
"""Units in one token."""
MAX_TOKENS: Final = 1_000_000_000
"""The largest amount, capacity and refill."""
MAX_DEBT: Final = 4_500_000_000_000_000
"""Units; deeper debts are cut to this."""
MAX_FILL_US: Final = 604_800_000_000
"""A bucket left alone for a week is full, whatever its debt was."""


class Limit(NamedTuple):
    """`capacity` in units; `refill` tokens in `window_s` seconds."""

    capacity: int
    refill: int
    window_s: int


Level = tuple[int, int]
"""What a bucket holds: units, and the instant in microseconds."""


def units(tokens: int) -> int:
    """A count of tokens in units; negative counts are 0, excessive ones MAX_TOKENS."""
    return min(max(tokens, 0), MAX_TOKENS) * UNITS


def fill_us(missing: int, limit: Limit) -> int:
    """Microseconds, rounded up, in which `missing` units flow in; at most MAX_FILL_US."""
    if missing <= 0:
        return 0
    return min(MAX_FILL_US, -(-missing * limit.window_s // limit.refill))


def refill(limit: Limit, stored: Level | None, now_us: int) -> Level:
    """The level now. None (never seen, or forgotten when it was full) is a full bucket."""
    capacity = limit.capacity
    if stored is None:
        return capacity, now_us
    level, at_us = stored
    if at_us >= now_us:
        return min(capacity, level), min(at_us, now_us + fill_us(capacity, limit))
    elapsed = now_us - at_us
    level += elapsed * limit.refill // limit.window_s
    # As long as `fill_us` says, in whole numbers.
    if level >= capacity or elapsed >= MAX_FILL_US:
        return capacity, now_us
    return level, now_us


def change(limit: Limit, level: Level, difference: int) -> Level:
    """Give back (positive) or charge (negative): never above capacity, maybe into debt."""
    return max(min(limit.capacity, level[0] + difference), -MAX_DEBT), level[1]


def full_at_us(limit: Limit, level: Level) -> int:
    """From when on forgetting this bucket changes nothing."""
    return level[1] + fill_us(limit.capacity - level[0], limit)
