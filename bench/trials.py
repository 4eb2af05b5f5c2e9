"""`python -m bench.trials [SCENARIO ...]`: shipped scenarios, the gateway with every feature on.

For each: two fake replicas (a third one that may join), Redis, keys, the gateway; then
`headrace-loadtest run` with the server's phases, processes and replicas, and with the commands for
what the scenario has happen. `--out DIR` keeps each report in a folder of its own. Prints a line
for each; the exit status is 1 if one is not VALID. Further options are those of `run`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.processes import BenchError, Processes, accepts, free_port
from bench.rig import AUDIENCE, ISSUER, REPOSITORY, start_gateway, start_redis
from loadtest.scenario import shipped
from proxy.serve.throwaway import Issuer, make_certificate

USUAL = ["--token-ms", "8", "--prefill-tokens-per-s", "50000"]
SLOW = {"idle_streams": ["--token-ms", "4000"]}
FIRST = ["nice", "-n", "-10"]  # where that is allowed: others' work must not make the client late
LOADTEST = [sys.executable, "-m", "loadtest"]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.trials",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO")
    parser.add_argument("--out", type=Path, metavar="DIR")
    arguments, others = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    statuses = []
    for name in arguments.scenarios or [each for each in shipped() if each != "soak"]:
        out = [] if arguments.out is None else ["--out", str(arguments.out / name)]
        began = time.monotonic()
        status, last = trial(name, [*out, *others])
        statuses.append(status)
        print(f"{name:14} {time.monotonic() - began:4.0f} s  {last}", flush=True)
    return int(any(statuses))


def trial(name: str, others: list[str]) -> tuple[int, str]:
    """The exit status of the run, and its verdict."""
    with tempfile.TemporaryDirectory(prefix="trial-") as path:
        folder = Path(path)
        with Processes(folder) as processes:
            try:
                rig = Rig(processes, folder, SLOW.get(name, USUAL))
            except BenchError as error:
                return 2, f"{error}\n{processes.last_words()}"
            try:
                done = subprocess.run(
                    [*FIRST, *LOADTEST, "run", name, *rig.options(), *others],
                    check=False,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            finally:
                rig.end()
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith("written:")]
    return done.returncode, lines[-1] if lines else "could not run"


class Rig:
    """What runs, and the commands for what happens to it."""

    def __init__(self, processes: Processes, folder: Path, speed: list[str]) -> None:
        make_certificate(folder)
        issuer = Issuer(ISSUER, AUDIENCE)
        (folder / "jwks.json").write_bytes(issuer.key_set())
        self._token = issuer.token("tenant-1", tier="gold")
        issuer.rotate()
        (folder / "jwks-next.json").write_bytes(issuer.key_set())
        self._folder = folder
        self._ports = (free_port(), free_port(), free_port())
        self._speed = speed
        pids = []
        for port in self._ports:
            command = self._replica(port)
            ready = lambda port=port: accepts(port)  # noqa: E731
            pids.append(processes.start(f"replica-{port}", command, ready).pid)
        self._first_pid = pids[0]
        self._redis_pid = start_redis(processes, folder)
        (folder / "more.yaml").write_text("replicas: []\n")
        self._port, self._admin = free_port(), free_port()
        gateway = start_gateway(
            processes,
            folder,
            self._port,
            self._ports[:2],
            admin=self._admin,
            replicas_file=str(folder / "more.yaml"),
        )
        assert gateway is not None
        self._gateway = gateway

    def __repr__(self) -> str:
        return f"<Rig {self._folder}>"

    def _replica(self, port: int) -> list[str]:
        return [*LOADTEST, "replica", "--port", str(port), "--model", "demo", *self._speed]

    def _url(self, port: int) -> str:
        return f"http://127.0.0.1:{port}"

    def options(self) -> list[str]:
        folder = self._folder
        found = ["--url", f"https://localhost:{self._port}", "--ca", str(folder / "ca.pem")]
        found += ["--header", f"authorization: Bearer {self._token}", "--model", "demo"]
        found += [
            "--phases",
            "--pid",
            str(self._gateway),
            "--attach",
            str(folder / "headrace.yaml"),
        ]
        found += ["--metrics", f"http://127.0.0.1:{self._admin}/metrics"]
        for port in self._ports:
            found += ["--replica", self._url(port)]
        for name, command in self._commands().items():
            found += ["--do", f"{name}={command}"]
        return found

    def _commands(self) -> dict[str, str]:
        folder = self._folder
        again = shlex.join(self._replica(self._ports[0]))
        more = json.dumps({"replicas": [{"url": self._url(self._ports[2]), "model": "demo"}]})
        return {
            "replica_down": f"kill -KILL {self._first_pid}",
            "replica_up": f"cd {REPOSITORY} && {again} >{folder}/again.log 2>&1 & "
            f"echo $! >{folder}/again.pid",
            "replica_add": f"echo {shlex.quote(more)} >{folder}/more.part && "
            f"mv {folder}/more.part {folder}/more.yaml",
            "rotate_key": f"mv {folder}/jwks-next.json {folder}/jwks.json",
            "redis_down": f"kill -STOP {self._redis_pid}",
            "redis_up": f"kill -CONT {self._redis_pid}",
        }

    def end(self) -> None:
        """What a command has started or stopped."""
        pid = self._folder / "again.pid"
        if pid.exists():
            os.kill(int(pid.read_text()), signal.SIGTERM)
        os.kill(self._redis_pid, signal.SIGCONT)


if __name__ == "__main__":
    sys.exit(main())
