"""`python -m bench.soak`: does the gateway grow over an hour's requests?

Starts it with two workers and every feature on before the cheapest replicas, and runs
`headrace-loadtest soak` on it: the requests of an hour at 10 sessions a second, in ten minutes.
Clients who leave, clients who read slowly, dialogues. Further options are those of that command.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.processes import BenchError, Processes, accepts, free_port
from bench.rig import make_identity, start_gateway, start_redis


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workers", type=int, default=2)
    arguments, others = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        with Processes(folder) as processes:
            try:
                command = build(processes, folder, arguments.workers)
            except BenchError as error:
                print(f"soak: {error}\n{processes.last_words()}", file=sys.stderr)
                return 2
            return subprocess.run([*command, *others], check=False).returncode


def build(processes: Processes, folder: Path, workers: int) -> list[str]:
    """The command that loads what was started."""
    token = make_identity(folder).token("tenant-1", tier="gold")
    ports = (free_port(), free_port())
    upstream = [sys.executable, "-m", "bench.upstream", *map(str, ports)]
    processes.start("upstream", upstream, lambda: all(map(accepts, ports)))
    start_redis(processes, folder)
    port, admin = free_port(), free_port()
    gateway = start_gateway(processes, folder, port, ports, admin=admin, workers=workers)
    assert gateway is not None
    command = [sys.executable, "-m", "loadtest", "soak", "--url", f"https://localhost:{port}"]
    command += ["--ca", str(folder / "ca.pem"), "--header", f"authorization: Bearer {token}"]
    return [*command, "--pid", str(gateway), "--metrics", f"http://127.0.0.1:{admin}/metrics"]


if __name__ == "__main__":
    sys.exit(main())
