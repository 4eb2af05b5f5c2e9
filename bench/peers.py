"""`python -m bench.peers [--binaries DIR ...] [--json FILE]`: the gateway beside other proxies.

All run at once before the same two replicas, and the same client asks them in alternating windows.
CPU is that of all processes of each, read from outside; all share one core, one at a time. What is
not installed, or does not start, is said. Measured are:

- CPU of a one-token request, and of each further token of 64-token answers at 32 streams
- requests a second of one core: the CPU of a request by division
- the time to first token that each adds to the direct way: of one request at a time, with and
  without a client that acknowledges at once (TCP_QUICKACK), and beside 32 and 200 streams
- private memory of all its processes, before the first request
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.__main__ import machine
from bench.measure import TOKENS, Results, one_round, quantile
from bench.peer_setups import SETUPS, Setup, find, version_of
from bench.processes import (
    BenchError,
    ClientProcess,
    Processes,
    accepts,
    benchmark,
    family,
    free_port,
)
from bench.rig import Proxy, Rig, make_identity, start_redis

WINDOW_S, LATENCY_S, CROWDED_S = 0.8, 0.3, 0.3
CROWDS = (32, 200)
IDLE_S = 0.5
QUICK = " with quick ACKs"


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
    with benchmark("peers") as (processes, folder):
        rig, about = build(processes, folder, arguments.binaries, arguments.only)
        results = run(rig, arguments.rounds)
    print("\n".join(report(results, about)))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(document(results, about), indent=1) + "\n")
    return 0


@dataclass(frozen=True, slots=True)
class About:
    """What is known of a proxy before it is measured. `memory`: MiB, all processes and the
    largest."""

    features: str
    version: str
    memory: tuple[float, float]


@dataclass(slots=True)
class Found:
    """`results`: costs, and times to the first token by target. `crowded`: those beside so many
    streams, by target."""

    results: Results = field(default_factory=Results)
    crowded: dict[int, dict[str, list[float]]] = field(default_factory=dict)


def build(
    processes: Processes, folder: Path, binaries: Sequence[Path], only: Sequence[str]
) -> tuple[Rig, dict[str, About]]:
    """Everything that is installed and starts."""
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
    for quick in ("", QUICK):
        how = {"port": ports[0], "ca": None, "token": token, "quickack": bool(quick)}
        client("target", name=f"direct{quick}", **how)
    proxies, about = [], {}
    for setup in SETUPS:
        if only and setup.binary and setup.name not in only:
            continue
        path = find(setup, binaries) if setup.binary else ""
        if path is None:
            print(f"{setup.name}: not installed", file=sys.stderr)
            continue
        proxy = _started(setup, processes, folder, ports, path)
        if proxy is None:
            continue
        port, pid = proxy
        memory = private_mib(pid)
        how = {"port": port, "ca": str(folder / "ca.pem") if setup.tls else None, "token": token}
        for quick in ("", QUICK):
            more = {"quickack": bool(quick), "headers": setup.headers(ports)}
            client("target", name=f"{setup.name}{quick}", **how, **more)
        answer = client("check", name=setup.name, tokens=4)
        if answer["failed"]:
            print(f"{setup.name}: does not answer: {answer['failed']}", file=sys.stderr)
            continue
        proxies.append(Proxy(setup.name, pid))
        version = version_of(path) if path else "this tree"
        about[setup.name] = About(setup.features, version, memory)
    return Rig(client, tuple(proxies), {}), about


def private_mib(pid: int) -> tuple[float, float]:
    """Of all its processes, and of the largest, once they are idle."""
    time.sleep(IDLE_S)
    found = []
    for each in family(pid):
        lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        kib = (int(line.split()[1]) for line in lines if line.startswith("Private_"))
        found.append(sum(kib) / 1024)
    return sum(found), max(found)


def _started(
    setup: Setup, processes: Processes, folder: Path, upstreams: tuple[int, ...], path: str
) -> tuple[int, int] | None:
    port = free_port()
    try:
        return port, setup.start(processes, folder, port, upstreams, path)
    except BenchError as error:
        print(f"{setup.name}: {error}", file=sys.stderr)
        return None


def run(rig: Rig, rounds: int) -> Found:
    """Each proxy's windows in turn; the order swaps."""
    found = Found()
    results = found.results
    for proxy in rig.proxies:
        one_round(rig, proxy, 0.6)
    for number in range(rounds):
        for proxy in rig.proxies if number % 2 else reversed(rig.proxies):
            results.rounds.setdefault(proxy.name, []).append(one_round(rig, proxy, WINDOW_S))
        for quick in ("", QUICK):
            names = [f"{name}{quick}" for name in (rig.direct, *(p.name for p in rig.proxies))]
            seconds = LATENCY_S * len(rig.proxies) / 2
            answer = rig.client("latency", names=names, seconds=seconds)
            if "failed" in answer:
                raise BenchError(answer["failed"])
            for name in names:
                results.ttft_ms.setdefault(name, []).extend(answer["times_ms"][name])
        for streams in CROWDS:
            _beside(rig, streams, found.crowded.setdefault(streams, {}))
    return found


def _beside(rig: Rig, streams: int, times: dict[str, list[float]]) -> None:
    """Times to the first token of answers of 64 tokens, so many at a time."""
    for name in (rig.direct, *(proxy.name for proxy in rig.proxies)):
        done = rig.client(
            "load", name=name, streams=streams, tokens=TOKENS, seconds=CROWDED_S, times=True
        )
        if done["errors"]:
            raise BenchError(f"{name}: {done['errors'][0]}")
        times.setdefault(name, []).extend(done["ttft_ms"])


HEAD = (
    "| Proxy | What it does | CPU per request, us | CPU per token, us | Requests/s of a core "
    "| Added TTFT p50 / p99, ms | with quick ACKs | beside 32 streams | beside 200 "
    "| Private MiB, all (largest) |"
)


def report(found: Found, about: dict[str, About]) -> Iterator[str]:
    """A table in Markdown: ours first, then by cost per token."""
    results = found.results
    rounds = len(results.rounds["headrace"])
    yield f"`python -m bench.peers` on {machine()}, {time.strftime('%Y-%m-%d')};"
    yield f"medians of {rounds} alternating rounds, one core, {TOKENS}-token answers at 32 streams."
    yield ""
    yield HEAD
    yield "|" + "---|" * (HEAD.count("|") - 1)
    for name in sorted(results.rounds, key=lambda name: _order(results, name)):
        row = _row(found, name)
        added = (row["added_ttft_ms"], row["added_ttft_quickack_ms"])
        added += tuple(row[f"added_ttft_{streams}_streams_ms"] for streams in CROWDS)
        cells = " | ".join(f"{p50:.2f} / {p99:.2f}" for p50, p99 in added)
        whole, largest = about[name].memory
        yield (
            f"| {name} | {about[name].features} | {row['per_request_us']:.0f} | "
            f"{row['per_token_us']:.1f} | {row['requests_per_core_s']:.0f} | {cells} | "
            f"{whole:.0f} ({largest:.0f}) |"
        )


def _order(results: Results, name: str) -> tuple[bool, float]:
    return not name.startswith("headrace"), statistics.median(results.column(name, "per_token"))


def _row(found: Found, name: str) -> dict[str, Any]:
    results = found.results
    per_request_us = statistics.median(results.column(name, "per_request"))
    row = {
        "per_request_us": per_request_us,
        "per_token_us": statistics.median(results.column(name, "per_token")),
        "requests_per_core_s": 1e6 / per_request_us,
        "ttft_p50_ms": quantile(results.ttft_ms[name], 0.5),
        "added_ttft_ms": _added(results.ttft_ms[name], results.ttft_ms["direct"]),
        "added_ttft_quickack_ms": _added(
            results.ttft_ms[f"{name}{QUICK}"], results.ttft_ms[f"direct{QUICK}"]
        ),
    }
    for streams, times in found.crowded.items():
        row[f"added_ttft_{streams}_streams_ms"] = _added(times[name], times["direct"])
    return row


def _added(times: Sequence[float], direct: Sequence[float]) -> tuple[float, float]:
    """Differences of the quantiles, p50 and p99."""
    p50, p99 = (quantile(times, share) - quantile(direct, share) for share in (0.5, 0.99))
    return p50, p99


def document(found: Found, about: dict[str, About]) -> dict[str, Any]:
    return {
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "rounds": len(found.results.rounds["headrace"]),
        "proxies": {
            name: {
                "features": about[name].features,
                "version": about[name].version,
                "private_mib": about[name].memory,
                **_row(found, name),
            }
            for name in found.results.rounds
        },
    }


if __name__ == "__main__":
    sys.exit(main())
