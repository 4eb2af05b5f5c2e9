"""Real processes on one Valkey that finish, abort and are killed: everything is right in one lease.

`HEADRACE_LEASE_CASES=10000` makes it as many requests; one in 25 kills its process.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Sequence
from typing import Any

from charges import ACME, plan_of
from limit_gateway import Gateway

from ratelimit.config import Rule

CASES = int(os.environ.get("HEADRACE_LEASE_CASES", "300"))
LEASE_S = 1.5
PROCESSES = 3
AT_ONCE = 10
RULES = (
    Rule(name="requests", limit=15_000, burst=100_000, window="day"),
    Rule(name="tokens", unit="total_tokens", limit=1_500_000, burst=10_000_000, window="day"),
    Rule(name="streams", unit="concurrent", limit=500),
)
PLAN = plan_of(*RULES)


async def live(url: str, tell: int, cases: int, seed: int) -> None:
    """Requests of one process until it has had its share, or kills itself in the middle of many."""
    dice = random.Random(seed)
    gateway = Gateway(url, *RULES, lease_s=LEASE_S)
    await gateway.limiter.start()

    async def one() -> None:
        kind = dice.choices(("finish", "abort", "die"), (60, 36, 4))[0]
        prompt, output = dice.randrange(1, 200), dice.randrange(1, 200)
        reservation = await gateway.limiter.reserve(
            ACME, model="m", prompt_tokens=prompt, max_output_tokens=dice.randrange(1, 200)
        )
        assert not reservation.degraded
        relayed = 0
        reservation.follow(lambda: relayed)
        for relayed in range(0, output, 40):  # noqa: B007 - the reservation asks for it
            await asyncio.sleep(dice.uniform(0, 0.01))
        if kind == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "finish":
            reservation.settle(prompt, 0, output)
            os.write(tell, b"%08d" % (prompt + output))
        else:
            reservation.abandon()

    remaining = cases
    while remaining > 0:
        await asyncio.gather(*[one() for _ in range(min(AT_ONCE, remaining))])
        remaining -= AT_ONCE
    await gateway.limiter.close()


def process(url: str, tell: int, cases: int, seed: int) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            asyncio.run(live(url, tell, cases, seed))
            code = 0
        finally:
            os._exit(code)
    return pid


def run_all(url: str, tell: int) -> int:
    """All cases, in processes that are replaced as they die; returns how many were killed."""
    dice, killed, started = random.Random(5), 0, 0
    pids: set[int] = set()
    while started < CASES or pids:
        while started < CASES and len(pids) < PROCESSES:
            pids.add(process(url, tell, share := dice.randrange(10, 40), dice.getrandbits(60)))
            started += share
        pid, status = os.wait()
        pids.discard(pid)
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, -signal.SIGKILL)
        killed += code != 0
    return killed


def told(descriptor: int) -> Sequence[int]:
    os.set_blocking(descriptor, False)
    found = b""
    while True:
        try:
            found += os.read(descriptor, 1 << 20)
        except BlockingIOError:
            return [int(found[at : at + 8]) for at in range(0, len(found), 8)]


async def left(url: str) -> Sequence[float]:
    """What the buckets hold once all leases are over."""
    await asyncio.sleep(LEASE_S)
    gateway = Gateway(url, *RULES, lease_s=LEASE_S)
    await gateway.limiter.start()
    try:
        for _ in range(1 + CASES // 16):  # each call gives back so many at most
            levels = await gateway.levels(PLAN)
    finally:
        await gateway.limiter.close()
    return levels


def test_what_is_left_after_a_lease_is_what_was_not_used(valkey: Any) -> None:
    read, write = os.pipe()
    started_at = time.monotonic()
    try:
        killed = run_all(valkey.url, write)
        used = told(read)
    finally:
        os.close(read)
        os.close(write)
    requests, tokens, streams = asyncio.run(left(valkey.url))
    charged_requests, charged_tokens = 100_000 - requests, 10_000_000 - tokens
    print(f"{len(used)} finished, {killed} processes killed; charged {charged_tokens:.0f} tokens")
    assert killed > 0
    assert streams == 500
    # Less what flowed in meanwhile, and of each killed process what it told and had yet to send.
    days, lost = (time.monotonic() - started_at) / 86_400, killed * AT_ONCE
    assert len(used) - lost - days * 15_000 <= charged_requests <= len(used)
    assert sum(used) - lost * 400 - days * 1_500_000 <= charged_tokens <= sum(used)
