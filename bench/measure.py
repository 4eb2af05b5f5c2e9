"""The measurements of one run: alternating windows, so that the machine's mood meets everyone."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.processes import BenchError, ClientProcess, cpu_ns
from bench.rig import Proxy, Rig

STREAMS = 32
TOKENS = 64
HTTP2_STREAMS = 50
HTTP2_ROUNDS, HTTP2_WINDOW_S = 5, 0.4


@dataclass(frozen=True, slots=True)
class Round:
    """One proxy's costs in one round, CPU us of all its processes.

    per_request: a one-token answer. per_token: what each further token of an answer adds, (long -
    one-token) / (tokens - 1). plain: a long answer's cost divided by its tokens. reads_per_token:
    how often the client was woken for a token of a long answer (about 1: nothing came in lumps).
    """

    per_request: float
    per_token: float
    plain: float
    requests_per_s: float
    tokens_per_s: float
    reads_per_token: float


@dataclass(slots=True)
class Results:
    """Rounds by proxy, and times to first token in ms by target, paired by position. `http2`: CPU
    us per token by how many streams share a connection to the gateway, 0 for HTTP/1.1."""

    rounds: dict[str, list[Round]] = field(default_factory=dict)
    ttft_ms: dict[str, list[float]] = field(default_factory=dict)
    http2: dict[int, list[float]] = field(default_factory=dict)

    def column(self, name: str, what: str) -> list[float]:
        return [getattr(one, what) for one in self.rounds[name]]

    def ratio(self, what: str, ours: str = "headrace", theirs: str = "nginx") -> float | None:
        """The median over rounds of ours / theirs; None when theirs did not run."""
        if theirs not in self.rounds:
            return None
        pairs = zip(self.column(ours, what), self.column(theirs, what), strict=True)
        return statistics.median(a / b for a, b in pairs)

    def http2_ratio(self, streams: int) -> float:
        """The median over rounds of HTTP/2 / HTTP/1.1."""
        pairs = zip(self.http2[streams], self.http2[0], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def added_ttft_ms(self, name: str, share: float) -> tuple[float, float]:
        """(difference of the quantiles, quantile of the paired differences) to direct."""
        through, direct = self.ttft_ms[name], self.ttft_ms["direct"]
        paired = [a - b for a, b in zip(through, direct, strict=True)]
        return quantile(through, share) - quantile(direct, share), quantile(paired, share)


def quantile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between the closest ranks."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def check(rig: Rig) -> None:
    """Every proxy must pass on what the upstream says, no more and no less."""
    expected = _spoken(rig.client, rig.direct)
    for proxy in rig.proxies:
        if (found := _spoken(rig.client, proxy.name)) != expected:
            raise BenchError(f"{proxy.name} changes the answer:\n{found}\ninstead of\n{expected}")


def _spoken(client: ClientProcess, name: str) -> list[object]:
    """The events of a short answer: choices of each, usage if any, and [DONE]."""
    answer = client("check", name=name, tokens=4)
    if answer["failed"]:
        raise BenchError(f"{name}: {answer['failed']}")
    events: list[object] = []
    for line in answer["bytes"].splitlines():
        if line == "data: [DONE]":
            events.append("[DONE]")
        elif line.startswith("data: "):
            event = json.loads(line[6:])
            events.append([event["choices"], event.get("usage")])
    return events


def cost_ns(
    rig: Rig,
    proxy: Proxy,
    tokens: int,
    seconds: float,
    *,
    target: str = "",
    streams: int = STREAMS,
) -> tuple[float, float, float]:
    """CPU ns a request, requests a second, client reads a request: answers of `tokens` tokens.
    `target`: the client's name for the proxy, if it has several."""
    name = target or proxy.name
    rig.client("load", name=name, streams=streams, tokens=1, seconds=0)  # pools are warm
    pids = proxy.pids()
    before = sum(map(cpu_ns, pids))
    done = rig.client("load", name=name, streams=streams, tokens=tokens, seconds=seconds)
    after = sum(map(cpu_ns, pids))
    if done["errors"]:
        raise BenchError(f"{proxy.name}: {done['errors'][0]}")
    if proxy.pids() != pids:
        raise BenchError(f"{proxy.name}: its processes changed while it was measured")
    requests = done["requests"]
    return (after - before) / requests, requests / done["seconds"], done["reads"] / requests


def one_round(rig: Rig, proxy: Proxy, seconds: float) -> Round:
    short_ns, short_rate, _ = cost_ns(rig, proxy, 1, seconds * 0.4)
    long_ns, long_rate, reads = cost_ns(rig, proxy, TOKENS, seconds * 0.6)
    return Round(
        short_ns / 1e3,
        (long_ns - short_ns) / (TOKENS - 1) / 1e3,
        long_ns / TOKENS / 1e3,
        short_rate,
        long_rate * TOKENS,
        reads / TOKENS,
    )


def http2_costs(rig: Rig, results: Results) -> None:
    """Whole answers by HTTP/1.1 and HTTP/2 in turn."""
    gateway = next(proxy for proxy in rig.proxies if proxy.name == "headrace")
    for number in range(-1, HTTP2_ROUNDS):  # the first one warms up
        for streams, target in rig.http2.items():
            cost, _, _ = cost_ns(
                rig, gateway, TOKENS, HTTP2_WINDOW_S, target=target, streams=HTTP2_STREAMS
            )
            if number >= 0:
                results.http2.setdefault(streams, []).append(cost / TOKENS / 1e3)


def latencies(rig: Rig, results: Results, seconds: float) -> None:
    """Add times to first token of direct and every proxy, taking turns."""
    names = [rig.direct, *(proxy.name for proxy in rig.proxies)]
    answer = rig.client("latency", names=names, seconds=seconds)
    if "failed" in answer:
        raise BenchError(answer["failed"])
    for name in names:
        results.ttft_ms.setdefault(name, []).extend(answer["times_ms"][name])


def run(rig: Rig, window_s: float, latency_s: float, end_at: float) -> Results:
    """Each proxy's windows in turn (the order swaps), then a latency window; until `end_at`, a
    monotonic instant, but five rounds at least."""
    check(rig)
    results = Results()
    http2_costs(rig, results)
    for proxy in rig.proxies:
        one_round(rig, proxy, 1.0)
    for number in itertools.count():
        began = time.monotonic()
        for proxy in rig.proxies if number % 2 else reversed(rig.proxies):
            results.rounds.setdefault(proxy.name, []).append(one_round(rig, proxy, window_s))
        latencies(rig, results, latency_s)
        now = time.monotonic()
        if number >= 4 and now + (now - began) > end_at:
            break
    return results
