"""`python -m bench.peers [--binaries DIR ...] [--json FILE]`: the gateway beside other proxies.

All run at once before the same two replicas, and the same client asks them in alternating windows.
CPU is that of all processes of each, read from outside; all share one core, one at a time. What is
not installed, or does not start, is said. As `python -m bench` measures: one-token requests,
further tokens of 64-token answers at 32 streams, and the time to first token that each adds.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.__main__ import machine
from bench.measure import TOKENS, Results, latencies, one_round, quantile
from bench.peer_setups import SETUPS, Setup, find, version_of
from bench.processes import BenchError, ClientProcess, Processes, accepts, free_port
from bench.rig import Proxy, Rig, make_identity, start_redis

WINDOW_S, LATENCY_S = 0.8, 0.3


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--binaries", type=Path, nargs="*", default=[], metavar="DIR")
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="and ours")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        folder = Path(name)
        with Processes(folder) as processes:
            try:
                rig, versions = build(processes, folder, arguments.binaries, arguments.only)
                results = run(rig, arguments.rounds)
            except BenchError as error:
                print(f"peers: {error}\n{processes.last_words()}", file=sys.stderr)
                return 1
    features = {setup.name: setup.features for setup in SETUPS}
    print("\n".join(report(results, features)))
    if arguments.json is not None:
        found = document(results, features, versions)
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def build(
    processes: Processes, folder: Path, binaries: Sequence[Path], only: Sequence[str]
) -> tuple[Rig, dict[str, str]]:
    """Everything that is installed and starts; the versions."""
    token = make_identity(folder).token("tenant-1", tier="gold")
    ports = (free_port(), free_port())
    processes.start(
        "upstream",
        [sys.executable, "-m", "bench.upstream", *map(str, ports)],
        lambda: all(map(accepts, ports)),
    )
    start_redis(processes, folder)
    client = ClientProcess(
        processes.start(
            "client",
            [sys.executable, "-m", "bench.client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    )
    client("target", name="direct", port=ports[0], ca=None, token=token)
    proxies, versions = [], {}
    for setup in SETUPS:
        if only and setup.binary and setup.name not in only:
            continue
        path = find(setup.binary, binaries) if setup.binary else ""
        if path is None:
            print(f"{setup.name}: not installed", file=sys.stderr)
            continue
        proxy = _started(setup, processes, folder, ports, path)
        if proxy is None:
            continue
        port, pid = proxy
        ca = str(folder / "ca.pem") if setup.tls else None
        client("target", name=setup.name, port=port, ca=ca, token=token)
        answer = client("check", name=setup.name, tokens=4)
        if answer["failed"]:
            print(f"{setup.name}: does not answer: {answer['failed']}", file=sys.stderr)
            continue
        proxies.append(Proxy(setup.name, pid))
        versions[setup.name] = version_of(path) if path else "this tree"
    return Rig(client, tuple(proxies), {}), versions


def _started(
    setup: Setup, processes: Processes, folder: Path, upstreams: tuple[int, ...], path: str
) -> tuple[int, int] | None:
    port = free_port()
    try:
        return port, setup.start(processes, folder, port, upstreams, path)
    except BenchError as error:
        print(f"{setup.name}: {error}", file=sys.stderr)
        return None


def run(rig: Rig, rounds: int) -> Results:
    """Each proxy's windows in turn; the order swaps."""
    results = Results()
    for proxy in rig.proxies:
        one_round(rig, proxy, 0.6)
    for number in range(rounds):
        for proxy in rig.proxies if number % 2 else reversed(rig.proxies):
            results.rounds.setdefault(proxy.name, []).append(one_round(rig, proxy, WINDOW_S))
        latencies(rig, results, LATENCY_S * len(rig.proxies) / 2)
    return results


def report(results: Results, features: dict[str, str]) -> Iterator[str]:
    """A table in Markdown: ours first, then by cost per token."""
    rounds = len(results.rounds["headrace"])
    yield f"`python -m bench.peers` on {machine()}, {time.strftime('%Y-%m-%d')};"
    yield f"medians of {rounds} alternating rounds, one core, {TOKENS}-token answers at 32 streams."
    yield ""
    yield (
        "| Proxy | What it does | CPU per request, us | CPU per token, us | Requests/s "
        "| Added TTFT p50, ms | p99, ms |"
    )
    yield "|---|---|---|---|---|---|---|"
    for name in sorted(results.rounds, key=lambda name: _order(results, name)):
        row = _row(results, name)
        yield (
            f"| {name} | {features[name]} | {row['per_request_us']:.0f} | "
            f"{row['per_token_us']:.1f} | {row['requests_per_s']:.0f} | "
            f"{row['added_ttft_p50_ms']:.2f} | {row['added_ttft_p99_ms']:.2f} |"
        )


def _order(results: Results, name: str) -> tuple[bool, float]:
    return not name.startswith("headrace"), statistics.median(results.column(name, "per_token"))


def _row(results: Results, name: str) -> dict[str, Any]:
    return {
        "per_request_us": statistics.median(results.column(name, "per_request")),
        "per_token_us": statistics.median(results.column(name, "per_token")),
        "requests_per_s": statistics.median(results.column(name, "requests_per_s")),
        "ttft_p50_ms": quantile(results.ttft_ms[name], 0.5),
        "added_ttft_p50_ms": results.added_ttft_ms(name, 0.5)[0],
        "added_ttft_p99_ms": results.added_ttft_ms(name, 0.99)[0],
    }


def document(
    results: Results, features: dict[str, str], versions: dict[str, str]
) -> dict[str, Any]:
    return {
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "rounds": len(results.rounds["headrace"]),
        "proxies": {
            name: {"features": features[name], "version": versions[name], **_row(results, name)}
            for name in results.rounds
        },
    }


if __name__ == "__main__":
    sys.exit(main())
