"""`python -m bench.slopes`: does a request or a token cost more where there is more of something?

Three lines that should be flat, CPU of the gateway's processes read from outside:

- a request of one token, with 1, 4, 16 and 64 replicas: a gateway for each number, all at once, in
  alternating windows
- a request of one token, with 10 to 10,000 tenants, each with buckets of its own in Redis: one
  gateway, in alternating windows, every tenant seen before
- a token, with 10 to 5,000 open streams that share 2,500 tokens a second, without what the same
  streams cost while they are silent: one gateway, and nginx beside it if it is installed; the
  numbers up and down again. More streams have more memory, which no cache holds any more: nginx's
  line tells how much of the slope that is.

The last line is for scripts: the cost at the greatest number by that at the least.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.measure import cost_ns
from bench.processes import (
    BenchError,
    ClientProcess,
    Processes,
    accepts,
    cpu_ns,
    free_port,
    open_as_many_as_may_be,
)
from bench.rig import Proxy, Rig, make_identity, start_gateway, start_nginx, start_redis

REPLICAS = (1, 4, 16, 64)
TENANTS = (10, 100, 1000, 10_000)
STREAMS = (10, 100, 1000, 5000)
WINDOW_S = 1.0
STREAM_WINDOW_S = 4.0
SETTLE_S = 2.0
_SHARED = ("cert.pem", "key.pem", "ca.pem", "jwks.json")


@dataclass(frozen=True, slots=True)
class Line:
    """What was measured at each number: the lower quartile of its windows, in us."""

    name: str
    unit: str
    costs: dict[int, list[float]]

    def at(self, number: int) -> float:
        values = self.costs[number]
        return statistics.quantiles(values, n=4)[0] if len(values) > 1 else values[0]

    @property
    def ratio(self) -> float:
        return self.at(max(self.costs)) / self.at(min(self.costs))

    def rows(self) -> Iterator[str]:
        least = self.at(min(self.costs))
        for number in sorted(self.costs):
            cost = self.at(number)
            yield f"{self.name:28} {number:6}  {cost:8.2f} us/{self.unit}  {cost / least:6.3f}"


def client_process(processes: Processes, *command: str) -> ClientProcess:
    started = processes.start(
        f"client-{free_port()}",
        [sys.executable, "-m", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    return ClientProcess(started)


def upstream(processes: Processes, count: int, *command: str) -> tuple[int, ...]:
    ports = tuple(free_port() for _ in range(count))
    processes.start(
        f"upstream-{ports[0]}",
        [sys.executable, "-m", *command, *map(str, ports)],
        lambda: all(map(accepts, ports)),
    )
    return ports


def gateway(processes: Processes, folder: Path, name: str, ups: tuple[int, ...]) -> tuple[int, int]:
    """One with a folder of its own, that waits for silent streams and sheds nothing on a slow
    machine; its port and pid."""
    own = folder / name
    own.mkdir()
    for shared in (*_SHARED, "redis.sock"):
        (own / shared).symlink_to(folder / shared)
    port = free_port()
    listen = {
        "addresses": [f"127.0.0.1:{port}"],
        "tls": {"certificate": str(own / "cert.pem"), "key": str(own / "key.pem")},
        "overload": {"loop_lag_s": "off"},
    }
    timeouts = {"idle_s": 3600, "first_token_s": 60}
    pid = start_gateway(processes, own, port, ups, listen=listen, upstream={"timeouts": timeouts})
    assert pid is not None
    return port, pid


def alternating(
    rig: Rig, targets: dict[int, tuple[Proxy, str]], rounds: int
) -> dict[int, list[float]]:
    """Microseconds a request, without what the gateway does in the same time unasked: it probes
    replicas and reads their metrics."""
    costs: dict[int, list[float]] = {number: [] for number in targets}
    unasked = {number: idle(proxy) for number, (proxy, _) in targets.items()}
    order = list(targets)
    for turn in range(rounds + 1):  # the first one warms up
        random.shuffle(order)
        for number in order:
            proxy, target = targets[number]
            cost, rate, _ = cost_ns(rig, proxy, 1, WINDOW_S, target=target)
            if turn:
                costs[number].append((cost - unasked[number] / rate) / 1e3)
    return costs


def idle(proxy: Proxy) -> float:
    """CPU ns a second without requests."""
    before = sum(map(cpu_ns, proxy.pids()))
    time.sleep(SETTLE_S)
    return (sum(map(cpu_ns, proxy.pids())) - before) / SETTLE_S


def replicas(processes: Processes, folder: Path, token: str, rounds: int) -> Line:
    client = client_process(processes, "bench.client")
    ups = upstream(processes, max(REPLICAS), "bench.upstream")
    targets = {}
    for number in REPLICAS:
        name = f"{number}-replicas"
        port, pid = gateway(processes, folder, name, ups[:number])
        client("target", name=name, port=port, ca=str(folder / "ca.pem"), token=token)
        targets[number] = Proxy(name, pid), name
    rig = Rig(client, (), {})
    return Line("replicas", "request", alternating(rig, targets, rounds))


def tenants(processes: Processes, folder: Path, tokens: Sequence[str], rounds: int) -> Line:
    client = client_process(processes, "bench.client")
    port, pid = gateway(processes, folder, "tenants", upstream(processes, 2, "bench.upstream"))
    targets = {}
    for number in TENANTS:
        name, path = f"{number}-tenants", folder / f"{number}.tokens"
        path.write_text("\n".join(tokens[:number]))
        ca = str(folder / "ca.pem")
        client("target", name=name, port=port, ca=ca, token=tokens[0], tokens=str(path))
        targets[number] = Proxy(name, pid), name
    rig = Rig(client, (), {})
    seen = 0
    while seen < max(TENANTS) * 1.1:  # they come in turn, so that each has been seen then
        many = f"{max(TENANTS)}-tenants"
        seen += int(client("load", name=many, streams=32, tokens=1, seconds=WINDOW_S)["requests"])
    return Line("tenants", "request", alternating(rig, targets, rounds))


def streams(processes: Processes, folder: Path, token: str, rounds: int) -> list[Line]:
    ups = upstream(processes, 2, "bench.slope_ends", "upstream")
    speaker = processes.latest
    ends = ("bench.slope_ends", "clients", str(folder / "ca.pem"), token)
    client = client_process(processes, *ends)
    found = {"streams": gateway(processes, folder, "streams", ups)}
    port = free_port()
    if (pid := start_nginx(processes, folder, port, ups)) is not None:
        found["streams through nginx"] = port, pid
    lines = []
    for name, (port, pid) in found.items():
        tokens: dict[int, list[float]] = {number: [] for number in STREAMS}
        proxy = Proxy(name, pid)
        for number in [*STREAMS, *reversed(STREAMS)] * max(1, rounds // 8):
            speaker.send_signal(signal.SIGUSR1)  # nothing is said while streams come and go
            client("hold", name=name, port=port, count=number)
            time.sleep(SETTLE_S)
            silent_ns = idle(proxy)
            speaker.send_signal(signal.SIGUSR1)
            client("watch", name=name, seconds=1.0)
            before = sum(map(cpu_ns, proxy.pids()))
            seen = client("watch", name=name, seconds=STREAM_WINDOW_S)
            used_ns = sum(map(cpu_ns, proxy.pids())) - before
            if seen["lost"]:
                raise BenchError(f"{seen['lost']} of {number} streams were lost")
            cost_us = (used_ns - silent_ns * float(seen["seconds"])) / 1e3 / int(seen["tokens"])
            tokens[number].append(cost_us)
            held = silent_ns / 1e3 / number
            print(f"{name}: {number} silent ones cost {held:.2f} us a second each", flush=True)
        client("hold", name=name, port=port, count=0)
        lines.append(Line(name, "token", tokens))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.slopes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=8, metavar="N")
    parser.add_argument("--only", choices=("replicas", "tenants", "streams"))
    arguments = parser.parse_args()
    open_as_many_as_may_be()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    lines: list[Line] = []
    for name in ("replicas", "tenants", "streams"):
        if arguments.only in (None, name):
            found = one(name, arguments.rounds)
            if not found:
                return 1
            lines += found
            print("\n".join(row for line in found for row in line.rows()), flush=True)
    ratios = " ".join(f"{line.name.replace(' ', '-')}={line.ratio:.3f}" for line in lines)
    print(f"slopes: {ratios}")
    return 0


def one(name: str, rounds: int) -> list[Line]:
    """[]: it failed, and that was said."""
    with tempfile.TemporaryDirectory(prefix="slopes-") as path:
        folder = Path(path)
        with Processes(folder) as processes:
            try:
                issuer = make_identity(folder)
                start_redis(processes, folder)
                token = issuer.token("tenant-1", tier="gold")
                if name == "replicas":
                    return [replicas(processes, folder, token, rounds)]
                if name == "streams":
                    return streams(processes, folder, token, rounds)
                many = [issuer.token(f"tenant-{n}", tier="gold") for n in range(max(TENANTS))]
                return [tenants(processes, folder, many, rounds)]
            except BenchError as error:
                print(f"slopes: {error}\n{processes.last_words()}", file=sys.stderr)
                return []


if __name__ == "__main__":
    sys.exit(main())
