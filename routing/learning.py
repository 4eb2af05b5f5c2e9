"""Learning how fast replicas are from their answers. Pure.

The last 64 samples count; within a minute an estimate moves by no more than a factor of two, so
that one outlier cannot turn the routing over. Replicas of a model are taken for equally fast (by
their weights) until they differ by more than noise does: whoever is believed faster gets more
requests, only who gets requests is measured, and so a small error would keep itself alive.
"""

from __future__ import annotations

from collections import deque

_SAMPLES = 64
_FIRST_SAMPLES = 8
_EVERY = 4
_EVERY_LATER = 16  # of a full window: sorting it is the dearest part of learning
_PERIOD_S = 60.0
_FACTOR = 2.0
# A shorter wait measures the network and the engine's step, not the prefill.
_LEAST_PREFILL_TOKENS = 512
# vLLM's step time without any sequence, as measured for the priors.
_STEP_S = 0.012
_NOISE = 1.25


class Estimate:
    """A positive number: a quantile of the last samples, moving at a bounded pace. Until it is
    `founded` on enough of them it stays at its prior."""

    __slots__ = ("_count", "_quantile", "_reference", "_renewed_at", "_samples", "founded", "value")

    def __init__(self, prior: float, quantile: float) -> None:
        self.value = prior
        self.founded = False
        self._quantile = quantile
        self._samples: deque[float] = deque(maxlen=_SAMPLES)
        self._count = 0
        self._reference = prior
        self._renewed_at: float | None = None

    def __repr__(self) -> str:
        return f"<Estimate {self.value:.6g} of {len(self._samples)}>"

    def add(self, sample: float, now: float) -> bool:
        """Take a sample in at `now` (seconds); returns whether `value` was found anew."""
        if self._renewed_at is None:
            self._renewed_at = now
        elif now - self._renewed_at >= _PERIOD_S:
            self._renewed_at = now
            self._reference = self.value
        self._samples.append(sample)
        self._count += 1
        every = _EVERY if self._count <= _SAMPLES else _EVERY_LATER
        if self._count % every or self._count < _FIRST_SAMPLES:
            return False
        self.founded = True
        ordered = sorted(self._samples)
        wanted = ordered[min(int(len(ordered) * self._quantile), len(ordered) - 1)]
        self.value = min(max(wanted, self._reference / _FACTOR), self._reference * _FACTOR)
        return True


def _beyond_noise(own: Estimate, common: Estimate) -> float:
    """The ratio of two estimates without the part that may be noise: continuous, 1 in between."""
    if not own.founded:
        return 1.0
    ratio = own.value / common.value
    if ratio > _NOISE:
        return ratio / _NOISE
    if ratio * _NOISE < 1.0:
        return ratio * _NOISE
    return 1.0


class ModelSpeed:
    """What the replicas of one model have in common. Priors as in `Speed`, of weight 1."""

    def __init__(self, prefill_rate: float, per_sequence: float, per_token: float) -> None:
        self._prior = prefill_rate
        self.prefill = Estimate(prefill_rate, 0.9)
        self.pace = Estimate(1.0, 0.5)
        self.per_sequence = per_sequence
        self.per_token = per_token
        self._speeds: list[Speed] = []

    def __repr__(self) -> str:
        return f"<ModelSpeed P={self.prefill.value:.0f} pace={self.pace.value:.2f}>"

    def replica(self, weight: float) -> Speed:
        """A replica joins, unmeasured."""
        speed = Speed(self, Estimate(self._prior, 0.9), weight)
        self._speeds.append(speed)
        return speed

    def forget(self, speed: Speed) -> None:
        """It left. Idempotent."""
        if speed in self._speeds:
            self._speeds.remove(speed)

    def changed(self) -> None:
        """An estimate moved."""
        for speed in self._speeds:
            speed.refresh()


class Speed:
    """P, a and b of one replica (see `score`): `prefill_rate` in tokens a second,
    `per_sequence` and `per_token` in seconds a step.

    a and b cannot be told apart from the pace of output alone: both follow one factor.
    """

    __slots__ = (
        "_model",
        "_pace",
        "_prefill",
        "_weight",
        "per_sequence",
        "per_token",
        "prefill_rate",
    )

    def __init__(self, model: ModelSpeed, prefill: Estimate, weight: float) -> None:
        self._model = model
        self._weight = weight
        self._prefill = prefill
        self._pace = Estimate(1.0, 0.5)
        self.refresh()

    def __repr__(self) -> str:
        return f"<Speed P={self.prefill_rate:.0f} a={self.per_sequence:.2g}>"

    def refresh(self) -> None:
        """Take over what the model's or the own estimates have become."""
        model = self._model
        ratio = _beyond_noise(self._prefill, model.prefill)
        self.prefill_rate = model.prefill.value * self._weight * ratio
        pace = model.pace.value * _beyond_noise(self._pace, model.pace)
        self.per_sequence = model.per_sequence * pace
        self.per_token = model.per_token * pace

    def first_token(self, work_tokens: float, seconds: float, now: float) -> None:
        """`work_tokens` (of this prompt and of those before it) were prefilled in `seconds`."""
        if work_tokens < _LEAST_PREFILL_TOKENS or seconds <= 0:
            return
        rate = work_tokens / seconds / self._weight
        if self._prefill.add(rate, now) | self._model.prefill.add(rate, now):
            self._model.changed()

    def finished(self, step_s: float, sequences: int, live_tokens: int, now: float) -> None:
        """A token took `step_s` on average beside `sequences` holding `live_tokens`."""
        if step_s <= 0:
            return
        model = self._model
        expected = _STEP_S + model.per_sequence * sequences + model.per_token * live_tokens
        pace = step_s / expected
        if self._pace.add(pace, now) | model.pace.add(pace, now):
            model.changed()
