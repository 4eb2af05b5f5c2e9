"""`headrace-loadtest COMMAND`, or `python -m loadtest COMMAND`: load tests of any LLM server."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence

from loadtest import (
    compare_command,
    gate_command,
    replay_command,
    replica_command,
    report_command,
    run_command,
    soak_command,
    sweep_command,
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="headrace-loadtest", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run_command.add_to(commands)
    sweep_command.add_to(commands)
    report_command.add_to(commands)
    compare_command.add_to(commands)
    replay_command.add_to(commands)
    gate_command.add_to(commands)
    soak_command.add_to(commands)
    replica_command.add_to(commands)
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a terminal cannot show is no fault of ours
        sys.stdout.reconfigure(errors="backslashreplace")
    namespace = parser.parse_args(arguments)
    try:
        status: int = namespace.run(namespace)
    except KeyboardInterrupt:  # before or after a run; in a run the runner is told
        return run_command.INTERRUPTED
    except BrokenPipeError:  # `| head -1`
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
