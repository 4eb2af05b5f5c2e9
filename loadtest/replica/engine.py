"""When tokens come: queue, first-come first-served prefill, and the counters of /metrics. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadtest.replica.options import ReplicaOptions
from loadtest.replica.prefix_cache import PrefixCache

SECONDS_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0)


@dataclass(eq=False, slots=True)
class Job:
    """One answer being made. Times are monotonic seconds; `first_token_at` is 0 while queued.
    `fetched`: another replica has prefilled the prompt."""

    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    salt: str = ""
    rank: int = 0
    submitted_at: float = 0.0
    started_at: float = 0.0
    first_token_at: float = 0.0
    cached_tokens: int = 0
    sent_tokens: int = 0
    fetched: bool = False


class Histogram:
    """Cumulative buckets, sum and count, as Prometheus has them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * len(self.bounds)
        self.sum = 0.0
        self.count = 0

    def __repr__(self) -> str:
        return f"<Histogram n={self.count} sum={self.sum}>"

    def observe(self, value: float) -> None:
        self.sum += value
        self.count += 1
        for i, bound in enumerate(self.bounds):
            if value <= bound:
                self.counts[i] += 1


@dataclass(slots=True)
class Counters:
    """What /metrics counts; tokens unless the name says otherwise."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    rejected_requests: int = 0
    finished_requests: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error"), 0)
    )
    ttft_s: Histogram = field(default_factory=lambda: Histogram(SECONDS_BUCKETS))
    queue_s: Histogram = field(default_factory=lambda: Histogram(SECONDS_BUCKETS))
    e2e_s: Histogram = field(default_factory=lambda: Histogram(SECONDS_BUCKETS))


class Overloaded(Exception):
    """The waiting queue is full."""


class Engine:
    """Admits at most `max_running` jobs; their prefills follow one another, decoding overlaps.

    A prefill takes base + uncached / rate. The time of a job that is aborted before its first
    token stays reserved (a real engine would give it to the next one).
    """

    def __init__(self, options: ReplicaOptions) -> None:
        self._options = options
        self._base_s = options.prefill_base_ms / 1e3
        rate = options.prefill_tokens_per_s
        self._token_s = 1 / rate if rate else 0.0
        self._prefill_free_at = 0.0
        self.cache = PrefixCache(options.num_blocks, options.block_size)
        self.running: set[Job] = set()
        self.waiting: deque[Job] = deque()
        self.counters = Counters()

    def __repr__(self) -> str:
        return f"<Engine running={len(self.running)} waiting={len(self.waiting)} {self.cache!r}>"

    def submit(self, job: Job, now: float) -> bool:
        """True: it runs and `first_token_at` is set; False: it waits. Overloaded when full."""
        job.submitted_at = now
        if len(self.running) < self._options.max_running:
            self._start(job, now)
            return True
        limit = self._options.max_queued
        if limit is not None and len(self.waiting) >= limit:
            self.counters.rejected_requests += 1
            raise Overloaded
        self.waiting.append(job)
        return False

    def finish(self, job: Job, reason: str, now: float) -> list[Job]:
        """The job ends (`stop`, `length`, `abort` or `error`); the jobs that start instead."""
        if job in self.running:
            self.running.remove(job)
        elif job in self.waiting:
            self.waiting.remove(job)
        self.counters.finished_requests[reason] += 1
        self.counters.generation_tokens += job.sent_tokens
        self.counters.e2e_s.observe(now - job.submitted_at)
        if job.sent_tokens:
            spoken = job.output_ids[: job.sent_tokens]
            self.cache.insert([*job.prompt_ids, *spoken], job.salt)
        started = []
        while self.waiting and len(self.running) < self._options.max_running:
            following = self.waiting.popleft()
            self._start(following, now)
            started.append(following)
        return started

    def kv_cache_usage(self) -> float:
        """The share of blocks that running jobs hold, 0..1."""
        size = self._options.block_size
        held = sum(-(-(len(j.prompt_ids) + j.sent_tokens) // size) for j in self.running)
        return min(1.0, held / self._options.num_blocks)

    def _start(self, job: Job, now: float) -> None:
        self.running.add(job)
        prompt = len(job.prompt_ids)
        job.cached_tokens = self.cache.match(job.prompt_ids, job.salt)
        if job.fetched:
            job.cached_tokens = prompt - 1  # the last one is computed in any case
        self.cache.insert(job.prompt_ids, job.salt)
        begin = max(now, self._prefill_free_at)
        job.started_at = begin
        job.first_token_at = begin + self._base_s + (prompt - job.cached_tokens) * self._token_s
        self._prefill_free_at = job.first_token_at
        self.counters.prompt_tokens += prompt
        self.counters.cached_tokens += job.cached_tokens
        self.counters.queue_s.observe(begin - job.submitted_at)
        self.counters.ttft_s.observe(job.first_token_at - job.submitted_at)
