from __future__ import annotations

import pytest

from routing.learning import Estimate, ModelSpeed


def test_few_samples_change_nothing() -> None:
    estimate = Estimate(100.0, 0.5)
    for _ in range(7):
        estimate.add(150.0, 0.0)
    assert estimate.value == 100.0


def test_follows_the_quantile_of_the_last_samples() -> None:
    estimate = Estimate(100.0, 0.9)
    for sample in range(101, 201):
        estimate.add(float(sample), 0.0)
    assert 190 <= estimate.value <= 200
    median = Estimate(100.0, 0.5)
    for sample in range(101, 201):
        median.add(float(sample), 0.0)
    assert 160 <= median.value <= 180


@pytest.mark.parametrize(("sample", "steps"), [(1e9, [200, 400, 800]), (1e-9, [50, 25, 12.5])])
def test_moves_by_a_factor_of_two_a_minute_at_most(sample: float, steps: list[float]) -> None:
    estimate = Estimate(100.0, 0.5)
    for minute, expected in enumerate(steps):
        for second in range(50):
            estimate.add(sample, minute * 60.0 + second)
        assert estimate.value == expected


def test_an_outlier_does_not_turn_the_estimate_over() -> None:
    estimate = Estimate(100.0, 0.5)
    for _ in range(64):
        estimate.add(110.0, 0.0)
    estimate.add(1e9, 0.0)
    assert estimate.value == 110.0


def model() -> ModelSpeed:
    return ModelSpeed(16_000.0, 1e-4, 1e-8)


def test_prefill_is_learned_from_prompts_worth_measuring() -> None:
    speed = model().replica(1.0)
    for _ in range(64):
        speed.first_token(100.0, 1.0, 0.0)
        speed.first_token(1000.0, 0.0, 0.0)
    assert speed.prefill_rate == 16_000.0
    for _ in range(64):
        speed.first_token(10_000.0, 0.5, 0.0)
    assert speed.prefill_rate == 20_000.0


def test_decode_scales_both_constants() -> None:
    speed = model().replica(1.0)
    expected = 0.012 + 10 * 1e-4 + 1000 * 1e-8
    for _ in range(64):
        speed.finished(expected * 1.5, 10, 1000, 0.0)
        speed.finished(0.0, 10, 1000, 0.0)
    assert speed.per_sequence == pytest.approx(1.5e-4)
    assert speed.per_token == pytest.approx(1.5e-8)


def test_who_was_never_measured_is_taken_for_as_fast_as_the_others() -> None:
    common = model()
    measured, idle, strong = common.replica(1.0), common.replica(1.0), common.replica(2.0)
    for _ in range(64):
        measured.first_token(10_000.0, 0.4, 0.0)
    assert measured.prefill_rate == idle.prefill_rate == 25_000.0
    assert strong.prefill_rate == 50_000.0
    assert common.replica(1.0).prefill_rate == 25_000.0
    common.forget(idle)
    common.forget(idle)
    for _ in range(64):
        measured.first_token(10_000.0, 0.5, 0.0)
    assert idle.prefill_rate == 25_000.0


@pytest.mark.parametrize(("seconds", "slower"), [(0.6, 1.0), (1.0, 1.6)])
def test_only_differences_beyond_noise_count(seconds: float, slower: float) -> None:
    common = model()
    fast, slow = common.replica(1.0), common.replica(1.0)
    for _ in range(200):
        fast.first_token(10_000.0, 0.5, 0.0)
        slow.first_token(10_000.0, seconds, 0.0)
    assert fast.prefill_rate == pytest.approx(20_000.0)
    assert fast.prefill_rate / slow.prefill_rate == pytest.approx(slower)
