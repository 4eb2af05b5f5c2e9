"""`python -m bench.limits`: what limits in Redis cost the gateway, in CPU time per request.

Requests come at random, so many a second on average, on one event loop. Each reserves in three
buckets (requests, tokens, streams), lives for 50 ms and settles. Windows with limits alternate with
windows of the same load without, and the difference is what is printed: reserve, settle, the
connection to Redis and the timers. A Valkey of its own serves it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import statistics
import sys
import time

import uvloop

from bench.processes import benchmark
from bench.rig import start_redis
from core.metrics import Metrics
from core.principal import Principal
from ratelimit.config import LimitsConfig, RedisConfig, RedisStoreConfig, Rule
from ratelimit.limiter import Limiter
from ratelimit.reservation import Reservation

BARS_US = {1_000: 60.0, 5_000: 30.0}
LIFE_S = 0.05
TICK_S = 0.001
TENANTS = 50
RULES = (
    Rule(name="requests", limit=1_000_000_000),
    Rule(name="tokens", unit="total_tokens", limit=1_000_000_000, per=("tenant", "model")),
    Rule(name="streams", unit="concurrent", limit=1_000_000, per=("user",)),
)


class Load:
    """Requests on this loop, with limits or without."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._callers = [Principal(f"tenant-{i}", "user") for i in range(TENANTS)]
        self._running: set[asyncio.Task[None]] = set()
        self.count = 0
        self.failed = 0

    async def run(self, per_s: int, seconds: float, limited: bool) -> float:
        """CPU seconds for each request."""
        loop, at = asyncio.get_running_loop(), time.monotonic()
        one = self._limited if limited else self._free
        counted, started_s, end_at = self.count, time.process_time(), at + seconds
        while (now := time.monotonic()) < end_at:
            while at < now:
                at += random.expovariate(per_s)
                task = loop.create_task(one(self._callers[self.count % TENANTS]))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
                self.count += 1
            await asyncio.sleep(TICK_S)
        await asyncio.sleep(2 * LIFE_S)
        return (time.process_time() - started_s) / (self.count - counted)

    async def _limited(self, caller: Principal) -> None:
        with await self._limiter.reserve(
            caller, model="m", prompt_tokens=500, max_output_tokens=100
        ) as reservation:
            self.failed += reservation.degraded
            await asyncio.sleep(LIFE_S)
            reservation.settle(500, 100, 80)

    async def _free(self, caller: Principal) -> None:
        with Reservation(500, 100) as reservation:
            await asyncio.sleep(LIFE_S)
            reservation.settle(500, 100, 80)


async def measure(url: str, seconds: float, windows: int) -> bool:
    # What is measured is the cost, not how busy this machine is.
    store = RedisStoreConfig(redis=RedisConfig(url=url, deadline_s=1.0))
    limiter = Limiter(LimitsConfig(store=store, rules=RULES), Metrics.private())
    await limiter.start()
    load, met = Load(limiter), True
    try:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)  # as a worker does
        for per_s, bar_us in BARS_US.items():
            found: list[float] = []
            for _ in range(4 * windows):
                if len(found) == windows:
                    break
                failed = load.failed
                with_limits = await load.run(per_s, seconds, limited=True)
                without = await load.run(per_s, seconds, limited=False)
                if load.failed > failed:  # Redis did not keep up, on a busy machine: once more
                    await _reached(limiter)
                else:
                    found.append((with_limits - without) * 1e6)
            if not found:
                print(f"{per_s:5d} requests/s: too many for Redis on this machine at the moment")
                return False
            cost_us = statistics.median(found)
            met = met and cost_us <= bar_us
            print(
                f"{per_s:5d} requests/s: {cost_us:5.1f} us of CPU a request "
                f"({min(found):.1f} to {max(found):.1f} in {len(found)} windows; bar {bar_us:g})",
                flush=True,
            )
    finally:
        await limiter.close()
    return met


async def _reached(limiter: Limiter) -> None:
    while limiter.store.store.ready() is not None:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.limits",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=1.5, help="of a window")
    parser.add_argument("--windows", type=int, default=9)
    arguments = parser.parse_args()
    with benchmark() as (processes, folder):
        start_redis(processes, folder)
        work = measure(f"unix://{folder / 'redis.sock'}", arguments.seconds, arguments.windows)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return 0 if runner.run(work) else 1


if __name__ == "__main__":
    sys.exit(main())
