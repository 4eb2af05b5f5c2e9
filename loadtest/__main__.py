"""`python -m loadtest COMMAND`: load-test parts that stand on their own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from loadtest import replica_command


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    replica_command.add_to(commands)
    namespace = parser.parse_args(arguments)
    status: int = namespace.run(namespace)
    return status


if __name__ == "__main__":
    sys.exit(main())
