"""`python -m bench [--full]`: the gateway's cost with every feature on, beside nginx as bare relay.

What is measured, all in one run with alternating windows: CPU time of all processes of each proxy
per one-token request and per further streamed token (32 concurrent streams), and the time to first
token that each adds, against the same client going to the upstream directly. Every prompt is
different, about 100 tokens. The gateway does TLS 1.3, JWT, limits in Redis, tokenizing, prefix
routing over two replicas, usage accounting, an access log and metrics; nginx does TLS 1.3. The
proxies have a core to themselves where there are two or more.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.measure import HTTP2_STREAMS, STREAMS, TOKENS, Results, quantile, run
from bench.processes import benchmark
from bench.rig import build

QUICK_S, FULL_S = 42.0, 180.0
WINDOW_S, LATENCY_S = 0.8, 0.3  # many short windows beat few long ones

ROWS = (
    ("CPU per request, 1-token answers, us", "per_request"),
    ("CPU per further token, us", "per_token"),
    (f"CPU per token, whole {TOKENS}-token answers, us", "plain"),
    ("requests/s, 1-token answers", "requests_per_s"),
    (f"tokens/s, {TOKENS}-token answers (paced)", "tokens_per_s"),
    ("client reads per token", "reads_per_token"),
)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--full", action="store_true", help="longer: less noise (3 minutes)")
    arguments = parser.parse_args()
    end_at = time.monotonic() + (FULL_S if arguments.full else QUICK_S)
    with benchmark() as (processes, folder):
        results = run(build(processes, folder), WINDOW_S, LATENCY_S, end_at)
    command = "python -m bench" + (" --full" if arguments.full else "")
    for line in report(results, command):
        print(line)
    return 0


def report(results: Results, command: str) -> Iterator[str]:
    """The table, and as the last line the figures that scripts read."""
    names, rounds = sorted(results.rounds), len(results.rounds["headrace"])
    yield f"{command} on {machine()}"
    yield (
        f"median [least, greatest] of {rounds} alternating rounds; {STREAMS} concurrent streams; "
        "ratio: median of the rounds' ratios"
    )
    yield f"{'':44}" + "".join(f"{name:>24}" for name in names) + f"{'ratio':>8}"
    for title, what in ROWS:
        cells = "".join(f"{_spread(results.column(name, what)):>24}" for name in names)
        yield f"{title:44}{cells}{_ratio(results.ratio(what)):>8}"
    samples = len(results.ttft_ms["direct"])
    yield f"time to first token in ms, one request at a time, {samples} of each in random turn"
    yield f"{'':12}{'p50':>8}{'p99':>8}   added p50, p99: of the quantiles, of paired differences"
    for name, times in sorted(results.ttft_ms.items()):
        row = f"{name:12}{quantile(times, 0.5):8.3f}{quantile(times, 0.99):8.3f}"
        yield row if name == "direct" else row + _added(results, name)
    yield from _http2(results)
    added = [results.added_ttft_ms("headrace", share)[0] for share in (0.5, 0.99)]
    yield (
        f"bench: nginx_per_token_ratio={_ratio(results.ratio('per_token'))} "
        f"nginx_per_request_ratio={_ratio(results.ratio('per_request'))} "
        f"added_ttft_p50_ms={added[0]:.3f} added_ttft_p99_ms={added[1]:.3f}"
    )


def _http2(results: Results) -> Iterator[str]:
    """What HTTP/2 to the client costs beside HTTP/1.1."""
    if not results.http2:
        return
    yield (
        f"CPU per token by protocol, whole {TOKENS}-token answers, us "
        f"({HTTP2_STREAMS} concurrent streams; ratio to HTTP/1.1)"
    )
    for streams, costs in sorted(results.http2.items()):
        name = f"HTTP/2, {streams} to a connection" if streams else "HTTP/1.1"
        ratio = _ratio(results.http2_ratio(streams))
        yield f"{name:44}{_spread(costs):>24}{ratio:>8}"


def _added(results: Results, name: str) -> str:
    (median, paired), (tail, paired_tail) = (results.added_ttft_ms(name, q) for q in (0.5, 0.99))
    return f"{median:22.3f}{tail:9.3f}{paired:25.3f}{paired_tail:9.3f}"


def machine() -> str:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    python = platform.python_version()
    return f"{os.cpu_count()} x {model}, Linux {platform.release()}, Python {python}"


def _spread(values: list[float]) -> str:
    digits = 2 if max(values) < 100 else 0
    low, high = min(values), max(values)
    return f"{statistics.median(values):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _ratio(ratio: float | None) -> str:
    return "n/a" if ratio is None else f"{ratio:.2f}"


if __name__ == "__main__":
    sys.exit(main())
