"""`python -m bench.observability`: what it costs to know what the gateway does.

Two gateways before the same upstream, with every feature on. One tells everything: access log,
metrics, budgets, the latest exchanges for the page, every gap between tokens, and traces of one
exchange in a hundred to a collector. The other tells nothing at all (`bench.unobserved`). Windows
alternate; printed are the medians of the rounds' differences in CPU time, of all processes of each.
"""

from __future__ import annotations

import argparse
import http.server
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.__main__ import machine
from bench.measure import Round, one_round
from bench.processes import (
    ClientProcess,
    Processes,
    accepts,
    benchmark,
    free_port,
)
from bench.rig import Proxy, Rig, make_identity, start_gateway, start_redis

BAR_SHARE = 0.08
BAR_TOKEN_US = 0.3
NAMES = ("told", "untold")
_SHARED = ("cert.pem", "key.pem", "ca.pem", "jwks.json")


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes whatever comes."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def build(processes: Processes, folder: Path, sample_ratio: float) -> Rig:
    issuer = make_identity(folder)
    token = issuer.token("tenant-1", tier="gold")
    ports = (free_port(), free_port())
    upstream = [sys.executable, "-m", "bench.upstream", *map(str, ports)]
    processes.start("upstream", upstream, lambda: all(map(accepts, ports)))
    start_redis(processes, folder)
    collector = free_port()
    command = [sys.executable, "-m", "bench.observability", "--collector", str(collector)]
    processes.start("collector", command, lambda: accepts(collector))
    client = ClientProcess(
        processes.start(
            "client",
            [sys.executable, "-m", "bench.client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    )
    tracing = {
        "endpoint": f"http://127.0.0.1:{collector}/v1/traces",
        "sample_ratio": sample_ratio,
    }
    proxies = []
    for name in NAMES:
        own, port = folder / name, free_port()
        own.mkdir()
        for shared in _SHARED:
            shutil.copy(folder / shared, own)
        (own / "redis.sock").symlink_to(folder / "redis.sock")
        if name == "told":
            pid = start_gateway(
                processes, own, port, ports, tracing=tracing, budgets={"default": "chat"}
            )
        else:
            pid = start_gateway(
                processes, own, port, ports, module="bench.unobserved", log={"access": "off"}
            )
        assert pid is not None
        client("target", name=name, port=port, ca=str(folder / "ca.pem"), token=token)
        proxies.append(Proxy(name, pid))
    return Rig(client, tuple(proxies), {})


def measure(rig: Rig, seconds: float, window_s: float) -> dict[str, list[Round]]:
    for proxy in rig.proxies:
        one_round(rig, proxy, 1.0)
    rounds: dict[str, list[Round]] = {name: [] for name in NAMES}
    end_at = time.monotonic() + seconds
    while time.monotonic() < end_at or len(rounds["told"]) < 5:
        swapped = len(rounds["told"]) % 2
        for proxy in rig.proxies[::-1] if swapped else rig.proxies:
            rounds[proxy.name].append(one_round(rig, proxy, window_s))
    return rounds


def report(rounds: dict[str, list[Round]]) -> bool:
    """Print it; whether both bars are met."""
    pairs = list(zip(*(rounds[name] for name in NAMES), strict=True))
    shares = [(a.per_request - b.per_request) / b.per_request for a, b in pairs]
    more = [a.per_token - b.per_token for a, b in pairs]
    share, token = statistics.median(shares), statistics.median(more)
    print(f"python -m bench.observability on {machine()}, {len(pairs)} alternating rounds")
    for name in NAMES:
        requests, tokens = _costs(rounds[name])
        print(
            f"{name:8}{statistics.median(requests):9.1f} us a request, "
            f"{_quiet(requests):.1f} in the quietest tenth of the rounds; a further token "
            f"{statistics.median(tokens):.2f}, {_quiet(tokens):.2f}"
        )
    print(
        f"a request: {share:+.1%} (quartiles {_quartiles(shares, '{:+.1%}')}; bar {BAR_SHARE:.0%})"
    )
    print(f"a token: {token:+.3f} us (quartiles {_quartiles(more, '{:+.3f}')}; bar {BAR_TOKEN_US})")
    return share <= BAR_SHARE and token <= BAR_TOKEN_US


def _costs(rounds: list[Round]) -> tuple[list[float], list[float]]:
    return [one.per_request for one in rounds], [one.per_token for one in rounds]


def _quiet(values: list[float]) -> float:
    """Others on the machine only ever add."""
    return sorted(values)[len(values) // 10]


def _quartiles(values: list[float], form: str) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{form.format(low)} to {form.format(high)}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.observability",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--window", type=float, default=0.8, help="seconds of each window")
    parser.add_argument("--sample-ratio", type=float, default=0.01)
    parser.add_argument("--collector", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.collector:
        http.server.ThreadingHTTPServer(
            ("127.0.0.1", arguments.collector), Collector
        ).serve_forever()
    with benchmark() as (processes, folder):
        rig = build(processes, folder, arguments.sample_ratio)
        rounds = measure(rig, arguments.seconds, arguments.window)
    return 0 if report(rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
