"""Inter-token latency: the gaps between the events of streams, as a histogram for each model. Pure.

Per event only a list of integers is written to, which all streams of a model in this worker share;
ten times a second what is new goes on to the metrics. Events that came in one read are no time
apart.
"""

from __future__ import annotations

from bisect import bisect_left

from core.clock import Clock
from core.metrics import Histogram, Metrics

BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.033, 0.05, 0.075, 0.1, 0.15),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""Upper bounds of the buckets in seconds."""
_BUCKETS = len(BOUNDS) + 1


class TokenGaps:
    """Of all streams of one model, since they were told last: `counts` by bucket, the last one
    beyond all bounds, and the `seconds` of streams that have ended."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * _BUCKETS
        self.seconds = 0.0

    def __repr__(self) -> str:
        return f"<TokenGaps {sum(self.counts)}>"


class StreamGaps:
    """One stream. `at`: the instant of its last event. `proxy/passage.py` does for each token what
    `note` does, without the call."""

    __slots__ = ("_begun_at", "_gaps", "at", "counts", "now")

    def __init__(self, gaps: TokenGaps, now: Clock) -> None:
        self._gaps = gaps
        self._begun_at = self.at = 0.0
        self.counts = gaps.counts
        self.now = now

    def __repr__(self) -> str:
        return f"<StreamGaps at={self.at}>"

    def begin(self, at: float) -> None:
        """The first event came."""
        self._begun_at = self.at = at

    def note(self, events: int) -> None:
        """A read brought so many events, one at least."""
        now = self.now()
        counts = self.counts
        counts[bisect_left(BOUNDS, now - self.at)] += 1
        counts[0] += events - 1
        self.at = now

    def together(self, events: int) -> None:
        """So many more events came with the last one."""
        self.counts[0] += events

    def end(self) -> None:
        """No more events come."""
        self._gaps.seconds += self.at - self._begun_at
        self._begun_at = self.at


class GapMeters:
    """The gaps of one worker, on their way to the metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._histogram = metrics.histogram(
            "headrace_inter_token_latency_seconds",
            "Between one event of a stream and the next; sums are those of ended streams",
            BOUNDS,
            ("model",),
        )
        self._by_model: dict[str, tuple[TokenGaps, Histogram]] = {}

    def __repr__(self) -> str:
        return f"<GapMeters of {list(self._by_model)}>"

    def of(self, model: str) -> TokenGaps:
        """Where streams of `model` count."""
        found = self._by_model.get(model)
        if found is None:
            found = self._by_model[model] = TokenGaps(), self._histogram.labels(model)
        return found[0]

    def tell(self, now: float = 0.0) -> None:
        """Put into the metrics what is new."""
        for gaps, histogram in self._by_model.values():
            counts = gaps.counts
            if gaps.seconds or any(counts):
                histogram.observe_counts(counts, gaps.seconds)
                counts[:] = [0] * _BUCKETS  # the streams have this very list
                gaps.seconds = 0.0
