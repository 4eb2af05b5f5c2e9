"""`python -m bench.soak`: does the gateway grow over an hour's requests?

Starts it with two workers and every feature on before the cheapest replicas, and runs
`headrace-loadtest soak` on it: the requests of an hour at 6 sessions a second, in ten minutes.
Clients who leave, clients who read slowly, dialogues. Further options are those of that command.
Before that long prompts fill what is bounded and grows until then: each worker's tokenizer
remembers 16 MiB of texts, which the soak's own prompts would take half an hour to fill.
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

FILL = """
name: fill
arrivals: {kind: constant, rate: 20}
duration_s: 60
requests: [{name: long, prompt: 8000, output: 1}]
"""


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
                loadtest, target, watched = build(processes, folder, arguments.workers)
            except BenchError as error:
                print(f"soak: {error}\n{processes.last_words()}", file=sys.stderr)
                return 2
            (folder / "fill.yaml").write_text(FILL)
            fill = [*loadtest, "run", str(folder / "fill.yaml"), *target]
            subprocess.run(fill, check=False, stdout=subprocess.DEVNULL)
            soak = [*loadtest, "soak", *target, *watched, *others]
            return subprocess.run(soak, check=False).returncode


def build(processes: Processes, folder: Path, workers: int) -> tuple[list[str], ...]:
    """The load test, and its options for what was started: where it is, and what to watch."""
    token = make_identity(folder).token("tenant-1", tier="gold")
    ports = (free_port(), free_port())
    upstream = [sys.executable, "-m", "bench.upstream", *map(str, ports)]
    processes.start("upstream", upstream, lambda: all(map(accepts, ports)))
    start_redis(processes, folder)
    port, admin = free_port(), free_port()
    gateway = start_gateway(processes, folder, port, ports, admin=admin, workers=workers)
    assert gateway is not None
    target = ["--url", f"https://localhost:{port}", "--ca", str(folder / "ca.pem")]
    target += ["--header", f"authorization: Bearer {token}"]
    watched = ["--pid", str(gateway), "--metrics", f"http://127.0.0.1:{admin}/metrics"]
    return [sys.executable, "-m", "loadtest"], target, watched


if __name__ == "__main__":
    sys.exit(main())
