"""What the keys in the store say about buckets: whose they are, and how full. Pure.

A bucket that is full has no key. Figures are those of the rule; what a caller has of its own (by a
claim or an API key) is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any
from urllib.parse import quote, unquote

from ratelimit.answer import span
from ratelimit.bucket import MAX_TOKENS, UNITS, Limit, fill_us, refill
from ratelimit.config import OF_A_CALLER, WINDOW_S, Rule
from ratelimit.plan import COMMON_TAG, dimensions


@dataclass(frozen=True, slots=True)
class Found:
    """A bucket's key in the store, and what it is the key of. `who` are the values of the rule's
    dimensions; a tenant in an organisation has that there too."""

    key: str
    rule: Rule
    who: Mapping[str, str]

    @property
    def shared(self) -> bool:
        """Whether callers of different organisations draw on it."""
        return OF_A_CALLER.isdisjoint(self.who)


@dataclass(frozen=True, slots=True)
class Live:
    """How full it is: `left` of `capacity`, in whole tokens, requests, cost units or streams; less
    than none is a debt. `full_us`: until it is full again (0 for streams)."""

    found: Found
    left: int
    capacity: int
    full_us: int


class Keys:
    """Reads and makes the keys with this prefix, by these rules."""

    def __init__(self, prefix: str, rules: Iterable[Rule]) -> None:
        self._start = f"{prefix}:{{"
        self._rules = {rule.name: rule for rule in rules}

    def __repr__(self) -> str:
        return f"<Keys {self._start} {list(self._rules)}>"

    def read(self, key: str) -> Found | None:
        """None: no bucket, or of a rule that is none of these."""
        if not key.startswith(self._start):
            return None
        name, *rest = key.partition("}:")[2].split(":")
        rule = self._rules.get(name)
        if rule is None or rest[:1] != [rule.unit] or len(rest) != 1 + len(dimensions(rule)):
            return None
        return Found(key, rule, dict(_who(dimensions(rule), rest[1:])))

    def of_tenant(self, tenant: str) -> str:
        """A pattern for SCAN that matches all buckets of a tenant, and some others. Neither
        prefixes nor quoted names have characters that mean something in it."""
        return f"{self._start}*}}:*{quote(tenant, safe='')}*"

    def of_organisation(self, organisation: str) -> str:
        return self.of_tenant(organisation).replace("}:*", "}:*@")

    @property
    def by_organisation(self) -> bool:
        """Whether some rule has buckets of a whole organisation."""
        return any(_is_of_organisation(dimensions(rule)) for rule in self._rules.values())

    def shared(self, models: Sequence[str]) -> list[str]:
        """The keys of buckets that everybody shares; not those of addresses, which are many."""
        found = []
        for rule in self._rules.values():
            names = dimensions(rule)
            if rule.is_common and "address" not in names:
                for values in product(models, repeat=len(names)):
                    quoted = [quote(value, safe="") for value in values]
                    parts = ":".join([rule.name, rule.unit, *quoted])
                    found.append(f"{self._start}{COMMON_TAG}}}:{parts}")
        return found


def _who(names: Sequence[str], values: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name, value in zip(names, values, strict=True):
        if name == "tenant" and value.startswith("@"):
            organisation, _, value = value.partition("/")
            yield "organisation", unquote(organisation[1:])
        if name == "organisation" and not value.startswith("@"):
            name = "tenant"  # one without an organisation is one by itself
        yield name, unquote(value.removeprefix("@") if name == "organisation" else value)


def _is_of_organisation(names: Iterable[str]) -> bool:
    return "organisation" in names and "tenant" not in names


def is_of_tenant(found: Found, tenant: str) -> bool:
    return found.who.get("tenant") == tenant


def is_of_organisation(found: Found, organisation: str) -> bool:
    """Of the whole of it."""
    return _is_of_organisation(found.who) and found.who["organisation"] == organisation


def tokens_left(found: Found, stored: str, now_us: int) -> Live | None:
    """Of what the store has for a bucket of anything but streams. None: it cannot be read."""
    rule = found.rule
    capacity = min(rule.limit if rule.burst is None else rule.burst, MAX_TOKENS)
    limit = Limit(capacity * UNITS, rule.limit, WINDOW_S[rule.window])
    try:
        level, at_us = map(int, stored.split(" "))
    except ValueError:
        return None
    level, _ = refill(limit, (level, at_us), now_us)
    return Live(found, level // UNITS, capacity, fill_us(limit.capacity - level, limit))


def slots_left(found: Found, held: int) -> Live:
    return Live(found, found.rule.limit - held, found.rule.limit, 0)


def document(live: Live) -> dict[str, Any]:
    """For machines."""
    rule = live.found.rule
    said: dict[str, Any] = {"rule": rule.name, "unit": rule.unit, "for": dict(live.found.who)}
    said |= {"left": live.left, "capacity": live.capacity}
    if rule.unit == "concurrent":
        said["held"] = live.capacity - live.left
    else:
        said |= {"refill": rule.limit, "window": rule.window, "full_in_s": live.full_us / 1e6}
    return said | ({"shadow": True} if rule.shadow else {})


_HEAD = ("RULE", "UNIT", "FOR", "LEFT", "OF", "REFILL", "FULL IN")


def table(lives: Iterable[Live]) -> str:
    """For people."""
    rows = [_HEAD, *map(_row, lives)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "".join(f"{line}\n" for line in lines)


def _row(live: Live) -> tuple[str, ...]:
    rule = live.found.rule
    name = f"{rule.name} (shadow)" if rule.shadow else rule.name
    who = " ".join(f"{key}={_printable(value)}" for key, value in live.found.who.items())
    flows, full = f"{rule.limit}/{rule.window}", span(live.full_us).decode()
    if rule.unit == "concurrent":
        flows, full = f"{live.capacity - live.left} held", "-"
    return name, rule.unit, who or "everybody", str(live.left), str(live.capacity), flows, full


def _printable(text: str) -> str:
    """Names come from tokens, and a terminal obeys some characters."""
    return text if text.isascii() and text.isprintable() and " " not in text else quote(text)
