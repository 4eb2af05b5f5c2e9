"""`python -m bench.idle`: what does an idle stream cost in memory, and do others notice?

Clients open many streams over TLS, each on a connection of its own; the upstream sends a first
token on each and then nothing. Printed is what the gateway's processes (supervisor and workers)
have more of private memory (smaps_rollup, Private_Clean + Private_Dirty) than before the first
stream, divided by the number of streams. That includes the connection to the upstream that each
stream holds, and not what the kernel keeps for the sockets. All are opened, completed and closed
twice, because memory that was used before is not as thin as new one.

While all streams are open, short requests on new connections measure the time to first token,
against the same before. Then the upstream completes every stream, and each client checks that its
own is whole.

Descriptors: each client process and each worker needs two for every stream it holds. The clients'
addresses are 127.0.0.1 and those next to it, since one address has too few ports.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from bench.measure import quantile
from bench.processes import (
    ClientProcess,
    Processes,
    accepts,
    benchmark,
    family,
    free_port,
    open_as_many_as_may_be,
)
from bench.rig import make_identity, start_gateway, start_redis

BAR_KIB = 60.0
PER_PROCESS = 2500
PROBES = 300
_SETTLE_S = 2.0


@dataclass(slots=True)
class Rig:
    """What runs. `holders` are the client processes that hold streams, `prober` the one that
    makes short requests."""

    upstream: subprocess.Popen[str]
    gateway: int
    prober: ClientProcess
    holders: list[ClientProcess]

    def open(self, streams: int) -> None:
        for holder in self.holders:
            streams -= int(holder("open", count=min(streams, PER_PROCESS))["open"])

    def count(self, state: str) -> int:
        return sum(int(holder("count")[state]) for holder in self.holders)

    def complete(self, streams: int) -> int:
        """Let the upstream end all streams; how many clients then had a whole answer."""
        self.upstream.send_signal(signal.SIGUSR1)
        give_up_at = time.monotonic() + 60
        while (whole := self.count("complete")) < streams and time.monotonic() < give_up_at:
            time.sleep(0.5)
        return whole

    def close(self) -> None:
        for holder in self.holders:
            holder("close")

    def private_kib(self) -> int:
        """Private memory of the gateway's processes, once it has settled."""
        time.sleep(_SETTLE_S)
        total = 0
        for pid in family(self.gateway):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith(("Private_Clean:", "Private_Dirty:")):
                    total += int(line.split()[1])
        return total


def build(processes: Processes, folder: Path, streams: int, workers: int) -> Rig:
    issuer = make_identity(folder)
    ports = (free_port(), free_port())
    ends = [sys.executable, "-m", "bench.idle_ends"]
    upstream = processes.start(
        "upstream", [*ends, "upstream", *map(str, ports)], lambda: all(map(accepts, ports))
    )
    start_redis(processes, folder)
    port = free_port()
    timeouts = {"idle_s": 3600, "first_token_s": 60}
    gateway = start_gateway(
        processes, folder, port, ports, workers=workers, upstream={"timeouts": timeouts}
    )
    assert gateway is not None
    token = issuer.token("tenant-1", tier="gold")
    command = [*ends, "clients", str(port), str(folder / "ca.pem"), token]
    clients = [
        ClientProcess(
            processes.start(
                f"clients-{number}",
                [*command, f"127.0.0.{number + 1}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
        for number in range(-(-streams // PER_PROCESS) + 1)
    ]
    return Rig(upstream, gateway, clients[0], clients[1:])


def run(rig: Rig, streams: int, workers: int) -> Iterator[str]:
    rig.prober("probe", count=PROBES)
    yield _times("before", rig.prober("probe", count=PROBES))
    before = rig.private_kib()
    yield f"private memory of {workers} workers and supervisor: {before / 1024:.0f} MiB"
    grew = []
    for wave in ("first", "second"):
        began_at = time.monotonic()
        rig.open(streams)
        took_s = time.monotonic() - began_at
        yield f"{wave}: {streams} streams opened in {took_s:.1f} s ({streams / took_s:.0f}/s)"
        yield _times("with them idle", rig.prober("probe", count=PROBES))
        during = rig.private_kib()
        still, whole = rig.count("open"), rig.complete(streams)
        rig.close()
        yield (
            f"still open {still}, complete at the end {whole}; private memory "
            f"{during / 1024:.0f} MiB, and {rig.private_kib() / 1024:.0f} MiB when they are gone"
        )
        grew.append((during - before) / streams)
    yield f"idle: kib_per_stream={grew[0]:.1f} second_time={grew[1]:.1f} bar_kib={BAR_KIB:.0f}"


def _times(name: str, probes: dict[str, object]) -> str:
    first = sorted(cast(list[float], probes["first"]))
    whole = sorted(cast(list[float], probes["whole"]))
    return (
        f"{name:26} first token p50 {quantile(first, 0.5):6.2f} ms, "
        f"p99 {quantile(first, 0.99):6.2f} ms; with connection and handshake "
        f"p50 {quantile(whole, 0.5):6.2f} ms, p99 {quantile(whole, 0.99):6.2f} ms"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.idle",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    open_as_many_as_may_be()
    with benchmark() as (processes, folder):
        rig = build(processes, folder, arguments.streams, arguments.workers)
        for line in run(rig, arguments.streams, arguments.workers):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
