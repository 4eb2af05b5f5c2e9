"""Learning a replica's speed from its answers. Pure.

The last 64 samples count; within a minute an estimate moves by no more than a factor of two, so
that one outlier cannot turn the routing over.
"""

from __future__ import annotations

from collections import deque

_SAMPLES = 64
_FIRST_SAMPLES = 8
_EVERY = 4
_PERIOD_S = 60.0
_FACTOR = 2.0
# A shorter wait measures the network and the engine's step, not the prefill.
_LEAST_PREFILL_TOKENS = 512
# vLLM's step time without any sequence, as measured for the priors.
_STEP_S = 0.012


class Estimate:
    """A positive number: a quantile of the last samples, moving at a bounded pace."""

    __slots__ = ("_count", "_quantile", "_reference", "_renewed_at", "_samples", "value")

    def __init__(self, prior: float, quantile: float) -> None:
        self.value = prior
        self._quantile = quantile
        self._samples: deque[float] = deque(maxlen=_SAMPLES)
        self._count = 0
        self._reference = prior
        self._renewed_at: float | None = None

    def __repr__(self) -> str:
        return f"<Estimate {self.value:.6g} of {len(self._samples)}>"

    def add(self, sample: float, now: float) -> None:
        """Take a sample in at `now` (seconds)."""
        if self._renewed_at is None:
            self._renewed_at = now
        elif now - self._renewed_at >= _PERIOD_S:
            self._renewed_at = now
            self._reference = self.value
        self._samples.append(sample)
        self._count += 1
        if len(self._samples) < _FIRST_SAMPLES or self._count % _EVERY:
            return
        ordered = sorted(self._samples)
        wanted = ordered[min(int(len(ordered) * self._quantile), len(ordered) - 1)]
        self.value = min(max(wanted, self._reference / _FACTOR), self._reference * _FACTOR)


class Speed:
    """P, a and b of one replica (see `score`): `prefill_rate` in tokens a second,
    `per_sequence` and `per_token` in seconds a step.

    a and b cannot be told apart from the pace of output alone: both follow one factor.
    """

    __slots__ = ("_a", "_b", "_pace", "_prefill", "per_sequence", "per_token", "prefill_rate")

    def __init__(self, prefill_rate: float, per_sequence: float, per_token: float) -> None:
        self._prefill = Estimate(prefill_rate, 0.9)
        self._pace = Estimate(1.0, 0.5)
        self._a = self.per_sequence = per_sequence
        self._b = self.per_token = per_token
        self.prefill_rate = prefill_rate

    def __repr__(self) -> str:
        return f"<Speed P={self.prefill_rate:.0f} pace={self._pace.value:.2f}>"

    def first_token(self, work_tokens: float, seconds: float, now: float) -> None:
        """`work_tokens` (of this prompt and of those before it) were prefilled in `seconds`."""
        if work_tokens >= _LEAST_PREFILL_TOKENS and seconds > 0:
            self._prefill.add(work_tokens / seconds, now)
            self.prefill_rate = self._prefill.value

    def finished(self, step_s: float, sequences: int, live_tokens: int, now: float) -> None:
        """A token took `step_s` on average beside `sequences` holding `live_tokens`."""
        if step_s > 0:
            expected = _STEP_S + self._a * sequences + self._b * live_tokens
            self._pace.add(step_s / expected, now)
            self.per_sequence = self._a * self._pace.value
            self.per_token = self._b * self._pace.value
