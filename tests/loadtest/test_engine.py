from __future__ import annotations

import pytest

from loadtest.replica.engine import Engine, Histogram, Job, Overloaded
from loadtest.replica.options import ReplicaOptions


def engine(**changes):
    return Engine(ReplicaOptions(**changes))


def test_prefill_takes_base_and_the_uncached_tokens():
    one = engine(prefill_base_ms=10, prefill_tokens_per_s=1000, block_size=4)
    first = Job([1] * 40, [5])
    assert one.submit(first, now=100.0)
    assert first.first_token_at == pytest.approx(100.0 + 0.010 + 0.040)
    one.finish(first, "stop", now=101.0)
    second = Job([1] * 40, [5])
    one.submit(second, now=200.0)
    assert second.cached_tokens == 36
    assert second.first_token_at == pytest.approx(200.0 + 0.010 + 0.004)


def test_prefills_follow_one_another():
    one = engine(prefill_tokens_per_s=100)
    jobs = [Job([n] * 10, [5]) for n in range(3)]
    for job in jobs:
        one.submit(job, now=0.0)
    assert [job.first_token_at for job in jobs] == pytest.approx([0.1, 0.2, 0.3])
    assert one.counters.queue_s.sum == pytest.approx(0.1 + 0.2)


def test_waiting_jobs_start_when_others_end_in_their_order():
    one = engine(max_running=1)
    jobs = [Job([n], [5]) for n in range(3)]
    assert [one.submit(job, now=0.0) for job in jobs] == [True, False, False]
    assert one.finish(jobs[0], "stop", now=1.0) == [jobs[1]]
    assert jobs[1].first_token_at == 1.0
    assert list(one.waiting) == [jobs[2]]


def test_an_aborted_waiting_job_is_forgotten():
    one = engine(max_running=1)
    jobs = [Job([n], [5]) for n in range(3)]
    for job in jobs:
        one.submit(job, now=0.0)
    assert one.finish(jobs[1], "abort", now=0.5) == []
    assert one.finish(jobs[0], "stop", now=1.0) == [jobs[2]]


def test_a_full_queue_refuses_and_counts():
    one = engine(max_running=1, max_queued=1)
    one.submit(Job([1], [5]), now=0.0)
    one.submit(Job([2], [5]), now=0.0)
    with pytest.raises(Overloaded):
        one.submit(Job([3], [5]), now=0.0)
    assert one.counters.rejected_requests == 1
    assert len(one.waiting) == 1


def test_what_was_said_is_cached_for_the_next_turn():
    one = engine(block_size=4)
    job = Job([1, 2, 3], [7, 8, 9, 10, 11])
    one.submit(job, now=0.0)
    job.sent_tokens = 4
    one.finish(job, "length", now=1.0)
    assert one.cache.match([1, 2, 3, 7, 8, 9, 10, 0, 0]) == 4


def test_kv_usage_counts_the_blocks_that_running_jobs_hold():
    one = engine(num_blocks=10, block_size=4)
    job = Job([1] * 6, [5] * 9)
    one.submit(job, now=0.0)
    assert one.kv_cache_usage() == pytest.approx(0.2)
    job.sent_tokens = 3
    assert one.kv_cache_usage() == pytest.approx(0.3)


def test_a_histogram_is_cumulative():
    histogram = Histogram((1, 2))
    for value in (0.5, 1.5, 9):
        histogram.observe(value)
    assert histogram.counts == [1, 2]
    assert (histogram.count, histogram.sum) == (3, 11)
