"""One replica as a model: continuous batching with chunked prefill and a prefix cache. Pure.

A step decodes one token of every running sequence and prefills up to `chunk` tokens, first come
first served. It takes

    step_s + per_sequence * n + per_token * K + sum(chunk / rate * (1 + position / knee))

with n sequences decoding and K tokens of theirs. Steps without prefill are taken many at a time,
until an answer ends or a prompt comes. A prompt is admitted when it and its whole answer have
room, so that nothing is ever preempted. Blocks are matched when a prompt's turn comes, as vLLM
does, and the last token is computed always.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from routing.simulator.trace import Request


@dataclass(frozen=True, slots=True)
class EngineModel:
    """Rates in tokens a second, times in seconds, sizes in tokens."""

    prefill_rate: float = 15_928.0
    knee: float = 60_000.0
    step_s: float = 0.012
    per_sequence: float = 0.000_08
    per_token: float = 2e-8
    chunk: int = 2048
    kv_tokens: int = 600_000

    def prefill_seconds(self, uncached: float, cached: float) -> float:
        """The compute of `uncached` tokens behind `cached` ones."""
        return uncached / self.prefill_rate * (1.0 + (cached + uncached / 2) / self.knee)


class Job:
    """One try of a request on one replica. `lease` is for the policy."""

    __slots__ = (
        "cached",
        "done",
        "ended_at",
        "first_at",
        "gateway",
        "lease",
        "offered_at",
        "predicted",
        "replica",
        "request",
        "sent_at",
        "shed",
        "started",
        "tries",
    )

    def __init__(self, request: Request, offered_at: float) -> None:
        self.request = request
        self.offered_at = offered_at
        self.sent_at = offered_at
        self.replica = -1
        self.gateway = 0
        self.cached = 0
        self.predicted = 0
        self.done = 0
        self.started = False
        self.first_at: float | None = None
        self.ended_at: float | None = None
        self.shed = False
        self.tries = 0
        self.lease: object = None

    def __repr__(self) -> str:
        return f"<Job {self.request.number} on {self.replica}>"


class BlockCache:
    """The blocks that a replica holds, the least recently used first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blocks: dict[int, None] = {}

    def __repr__(self) -> str:
        return f"<BlockCache {len(self.blocks)} of {self.capacity}>"

    def match(self, blocks: Sequence[int]) -> int:
        """How many leading blocks are here."""
        held = self.blocks
        count = 0
        for block in blocks:
            if block not in held:
                break
            count += 1
        return count

    def touch(self, blocks: Sequence[int]) -> None:
        """Hold them as the most recently used, the head as the youngest."""
        held = self.blocks
        for block in reversed(blocks):
            if block in held:
                del held[block]
            held[block] = None
        excess = len(held) - self.capacity
        if excess > 0:
            oldest = iter(held)
            for block in [next(oldest) for _ in range(excess)]:
                del held[block]


class Engine:
    """`end_at` is when the present steps end (None: idle); `finish_steps` must be called then.
    `version` changes with `end_at`, so that an instant noted earlier can be told as stale."""

    def __init__(self, model: EngineModel, block_tokens: int) -> None:
        self.model = model
        self.block_tokens = block_tokens
        self.cache = BlockCache(model.kv_tokens // block_tokens)
        self.waiting: deque[Job] = deque()
        self.slowness = 1.0
        self.end_at: float | None = None
        self.version = 0
        self.busy_s = 0.0
        self.computed = 0
        self.used = 0
        self.context = 0
        self.decoding: list[tuple[int, int, Job]] = []
        self._step = 0
        self._begun_at = 0.0
        self._steps = 0
        self._prefilled: list[Job] = []
        self._pure = False

    def __repr__(self) -> str:
        return f"<Engine {len(self.waiting)} waiting, {len(self.decoding)} decoding>"

    @property
    def queued(self) -> int:
        """Prompts whose turn has not come."""
        return len(self.waiting) - self._begun

    @property
    def running(self) -> int:
        """Sequences being prefilled or decoded."""
        return len(self.decoding) + len(self._prefilled) + self._begun

    @property
    def _begun(self) -> int:
        return 1 if self.waiting and self.waiting[0].started else 0  # no other can be

    def submit(self, job: Job, now: float) -> None:
        """A prompt arrives."""
        self.waiting.append(job)
        if self.end_at is None:
            self._begin(now)
        elif self._pure and self._steps > 1:
            self._cut(now)

    def finish_steps(self, now: float) -> tuple[list[Job], list[Job]]:
        """The steps that end now: who got a first token, and whose answer ended."""
        self.busy_s += now - self._begun_at
        self._step += self._steps
        self.context += self._steps * len(self.decoding)
        ended: list[Job] = []
        while self.decoding and self.decoding[0][0] <= self._step:
            ended.append(heapq.heappop(self.decoding)[2])
        first = self._prefilled
        self._prefilled = []
        for job in first:
            request = job.request
            job.first_at = now
            self.cache.touch(request.blocks)
            self.context += request.length
            if request.output > 1:
                item = (self._step + request.output - 1, request.number, job)
                heapq.heappush(self.decoding, item)
            else:
                ended.append(job)
        for job in ended:
            self._release(job, now)
        self._begin(now)
        return first, ended

    def crash(self) -> list[Job]:
        """Everything is lost; who was here."""
        lost = [*self.waiting, *self._prefilled, *[job for _, _, job in self.decoding]]
        self.waiting.clear()
        self.decoding.clear()
        self._prefilled.clear()
        self.cache.blocks.clear()
        self.used = self.context = 0
        self._idle()
        return lost

    def remaining(self, now: float) -> float:
        """Seconds until every prompt here has been prefilled, if none comes."""
        model = self.model
        beside = model.step_s + model.per_sequence * len(self.decoding)
        beside += model.per_token * self.context
        total = max((self.end_at or now) - now, 0.0) if not self._pure else 0.0
        for job in self.waiting:
            length = job.request.length
            held = job.done if job.started else self.match(job.request)
            work = length - held
            total += model.prefill_seconds(work, held) + work / model.chunk * beside
        return total * self.slowness

    def match(self, request: Request) -> int:
        """How many of its tokens are here."""
        held = self.cache.match(request.blocks) * self.block_tokens
        return min(held, request.length - 1)

    def _release(self, job: Job, now: float) -> None:
        request = job.request
        job.ended_at = now
        self.used -= request.length + request.output
        self.context -= request.length + request.output - 1
        self.cache.touch(request.blocks)

    def _idle(self) -> None:
        self.end_at = None
        self.version += 1
        self._pure = False
        self._steps = 0

    def _begin(self, now: float) -> None:
        """Start the next steps."""
        self._begun_at = now
        prefill = self._schedule() if self.waiting else 0.0
        count = len(self.decoding)
        if prefill:
            self._steps, self._pure = 1, False
            seconds = self._decode_seconds(1) + prefill
        elif count:
            self._steps, self._pure = self.decoding[0][0] - self._step, True
            seconds = self._decode_seconds(self._steps)
        else:
            self._idle()
            return
        self.end_at = now + seconds * self.slowness
        self.version += 1

    def _schedule(self) -> float:
        """Give the next chunk to who waits longest; its compute in seconds, 0 if none has room."""
        model = self.model
        budget = model.chunk - len(self.decoding)
        seconds = 0.0
        while self.waiting and budget > 0:
            job = self.waiting[0]
            request = job.request
            if not job.started:
                need = request.length + request.output
                if self.used and self.used + need > model.kv_tokens:
                    break
                self.used += need
                job.started = True
                job.cached = job.done = self.match(request)
                self.computed += request.length - job.cached
            size = min(budget, request.length - job.done)
            seconds += model.prefill_seconds(size, job.done)
            job.done += size
            budget -= size
            if job.done < request.length:
                break
            self._prefilled.append(self.waiting.popleft())
        return seconds

    def _decode_seconds(self, steps: int) -> float:
        model = self.model
        count = len(self.decoding)
        one = model.step_s + model.per_sequence * count + model.per_token * self.context
        return steps * one + model.per_token * count * steps * (steps - 1) / 2

    def _cut(self, now: float) -> None:
        """End with the step under way, as a prompt came."""
        passed = (now - self._begun_at) / self.slowness
        low, high = 1, self._steps
        while low < high:
            middle = (low + high) // 2
            if self._decode_seconds(middle) >= passed:
                high = middle
            else:
                low = middle + 1
        self._steps = low
        self._pure = low > 1
        self.end_at = self._begun_at + self._decode_seconds(low) * self.slowness
        self.version += 1
