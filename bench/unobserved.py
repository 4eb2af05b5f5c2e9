"""`python -m bench.unobserved serve -c FILE`: the gateway without anything that tells what it does.

There is no such setting, since nobody should run it so; it is what `bench.observability` compares
with. No phases, records, log lines, metrics, budgets, latest exchanges, token gaps or spans.
"""

from __future__ import annotations

import sys
from typing import Any

from core.exchange import Exchange
from core.metrics import Counter, Gauge, Histogram
from proxy.access_log import AccessRecord
from proxy.observe import Observer
from proxy.passage import Passage
from proxy.serve.__main__ import main
from proxy.token_gaps import GapMeters, StreamGaps


class _Nothing(AccessRecord, kw_only=True):
    def enter(self, phase: str, now: float) -> None: ...

    def leave(self, now: float) -> None: ...


_NOTHING = _Nothing(request_id="")


def _nothing(*_: Any, **__: Any) -> None: ...


def _open(self: Observer, exchange: Exchange) -> AccessRecord:
    return _NOTHING


def _take(self: Passage, data: bytes) -> None:
    """`Passage.take` without the gap."""
    known = self._known.get(len(data))
    if known is not None:
        before, quote_at, size = known
        if (
            data.startswith(before)
            and data.find(34, len(before)) == quote_at
            and data.endswith(self._after)
        ):
            self.events += 1
            self.body_bytes += size
            self._send(data)
            return
    self._take_ordinarily(data)


def forget() -> None:
    """Take all of it out."""
    changes: list[tuple[type, str, Any]] = [
        (Observer, "open", _open),
        (Observer, "close", _nothing),
        (Observer, "refused", _nothing),
        (Passage, "take", _take),
        (GapMeters, "tell", _nothing),
        *((StreamGaps, name, _nothing) for name in ("begin", "note", "together", "end")),
        *((Counter, name, _nothing) for name in ("inc",)),
        *((Gauge, name, _nothing) for name in ("set", "inc", "dec")),
        *(
            (Histogram, name, _nothing)
            for name in ("observe", "observe_all", "observe_many", "observe_counts")
        ),
    ]
    for owner, name, what in changes:
        setattr(owner, name, what)


if __name__ == "__main__":
    forget()
    sys.exit(main())
