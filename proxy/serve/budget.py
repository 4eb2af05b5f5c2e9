"""The command `budget`: where the milliseconds go, against what each tier allows."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from core.errors import ConfigError
from proxy.access_log import PHASE_SECONDS
from proxy.budgets.config import BudgetsConfig, TierConfig
from proxy.budgets.growth import Growth, Sums, grown
from proxy.budgets.judge import PARTS
from proxy.budgets.meters import BREACHES, SECONDS
from proxy.listen.address import Address
from proxy.serve.admin_client import CannotAsk, fetch
from proxy.serve.config import load_config
from proxy.serve.histograms import Distribution, Page
from proxy.serve.supervise.supervisor import say

EXIT_UNREACHABLE = 1
OVER_SHARE = 0.05
"""Late in more exchanges than this: the p95 is beyond the allowance."""
_CLEAR = "\x1b[H\x1b[J"


def budget(arguments: argparse.Namespace) -> int:
    """Exit status 1: the gateway does not answer. Raises ConfigError."""
    config = load_config(arguments.config)
    if config.budgets is None:
        raise ConfigError("$.budgets: not configured; add `budgets: {default: chat}`, for example")
    if config.admin is None:
        raise ConfigError("$.admin: the running gateway is asked there; give it an address")
    address = config.admin.address.parsed
    try:
        before = None if arguments.all else _page(address)
        while True:
            if not arguments.all:
                time.sleep(arguments.seconds)
            now = _page(address)
            slower = [] if before is None else slower_phases(before, now)
            text = render(list(rows(config.budgets, before, now)), slower)
            sys.stdout.write((_CLEAR if arguments.watch else "") + text)
            sys.stdout.flush()
            if not arguments.watch or arguments.all:
                return 0
            before = now
    except CannotAsk as error:
        say(str(error))
        return EXIT_UNREACHABLE


@dataclass(frozen=True, slots=True)
class Row:
    """One part of one tier; durations in milliseconds, None without observations. `late`: the
    share of exchanges beyond the allowance."""

    tier: str
    part: str
    allowance: float | None
    count: int
    p50: float | None
    p95: float | None
    p99: float | None
    late: float

    @property
    def verdict(self) -> str:
        if self.allowance is None or not self.count:
            return "-"
        return "OVER" if self.late > OVER_SHARE else "PASS"


def rows(config: BudgetsConfig, before: Page | None, now: Page) -> Iterator[Row]:
    """What was observed after `before`, by tier and part."""
    labels = ("tier", "part")
    took = now.histograms(SECONDS, labels)
    late = now.values(BREACHES, labels)
    took_before = {} if before is None else before.histograms(SECONDS, labels)
    late_before = {} if before is None else before.values(BREACHES, labels)
    for name, tier in config.tiers.items():
        for part in PARTS:
            key = (name, part)
            whole = took.get(key, Distribution((), ()))
            recent = whole.since(took_before.get(key))
            began_anew = recent == whole
            breaches = late.get(key, 0.0) - (0.0 if began_anew else late_before.get(key, 0.0))
            yield _row(tier, name, part, recent, breaches)


def _row(tier: TierConfig, name: str, part: str, took: Distribution, breaches: float) -> Row:
    quantiles = [took.quantile(share) for share in (0.5, 0.95, 0.99)]
    p50, p95, p99 = [None if value is None else value * 1e3 for value in quantiles]
    allowance: float | None = getattr(tier, f"{part}_ms")
    count = int(took.count)
    return Row(name, part, allowance, count, p50, p95, p99, breaches / count if count else 0.0)


def slower_phases(before: Page, now: Page) -> list[Growth]:
    """Those that took longer between two pages than in all the time before."""
    usual, since = _phase_sums(before), _phase_sums(now)
    zero = Sums(0.0, 0.0)
    recent = {
        phase: Sums(*(a - b for a, b in zip(sums, usual.get(phase, zero), strict=True)))
        for phase, sums in since.items()
    }
    return grown(usual, recent)


def _phase_sums(page: Page) -> dict[str, Sums]:
    seconds = page.values(f"{PHASE_SECONDS}_sum", ("phase",))
    counts = page.values(f"{PHASE_SECONDS}_count", ("phase",))
    return {phase: Sums(seconds[phase,], count) for (phase,), count in counts.items()}


def render(found: list[Row], slower: Sequence[Growth] = ()) -> str:
    """The table, with the tiers that had exchanges, and phases that have become slower."""
    busy = {row.tier for row in found if row.count}
    if not busy:
        return "No exchange of any tier has ended in this time.\n"
    lines = [f"{'tier':10} {'part':13} {'allowed':>9} {'p50':>9} {'p95':>9} {'p99':>9}    late"]
    for row in found:
        if row.tier in busy and row.count:
            figures = [_ms(value) for value in (row.allowance, row.p50, row.p95, row.p99)]
            lines.append(
                f"{row.tier:10} {row.part:13} {' '.join(figures)} {row.late:6.1%}  {row.verdict}"
            )
    exchanges = {row.tier: row.count for row in found if row.part == "gateway" and row.count}
    counts = ", ".join(f"{count} {tier}" for tier, count in exchanges.items())
    lines.append(f"Milliseconds. Exchanges: {counts}. OVER: late in more than {OVER_SHARE:.0%}.")
    for growth in slower:
        lines.append(
            f"Slower than before: {growth.phase}, {growth.usual_s * 1e3:.1f} -> "
            f"{growth.now_s * 1e3:.1f} ms in the mean."
        )
    return "\n".join(lines) + "\n"


def _ms(value: float | None) -> str:
    return f"{'-' if value is None else format(value, '.1f'):>9}"


def _page(address: Address) -> Page:
    return Page(fetch(address, "/metrics").decode())
