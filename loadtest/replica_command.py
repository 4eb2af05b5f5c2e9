"""`python -m loadtest replica`: the fake replica as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import ssl
from pathlib import Path
from typing import Any

import uvloop

from loadtest.replica import KNOWN, FakeReplica, ReplicaOptions, parse_behaviour
from loadtest.replica.kv_log import ENCODINGS
from loadtest.replica.options import ENGINES

_DEFAULT = ReplicaOptions()
_FLAGS: tuple[tuple[str, type, str], ...] = (
    ("model", str, "the model's name"),
    ("engine", str, f"whose ways it has: {', '.join(ENGINES)}"),
    ("tokenizer", Path, "tokenizer.json"),
    ("chat_template", Path, "chat template (Jinja)"),
    ("max_model_len", int, "context length in tokens"),
    ("block_size", int, "tokens in a block of the prefix cache"),
    ("num_blocks", int, "blocks in the prefix cache"),
    ("max_running", int, "requests that run at once"),
    ("max_queued", int, "waiting requests beyond this are refused (default: never)"),
    ("prefill_base_ms", float, "time to first token without any prompt"),
    ("prefill_tokens_per_s", float, "prefill speed, first come first served (0: takes no time)"),
    ("token_ms", float, "time between tokens"),
    ("output_tokens", int, "length of an answer without max_tokens"),
    ("keep_alive_s", float, "idle connections are closed after this"),
    ("api_key", str, "required bearer key on /v1"),
    ("data_parallel", int, "engines behind the one address, each with its own cache"),
    ("kv_events", str, f"publish KV events: {', '.join(ENCODINGS)}"),
    ("kv_endpoint", str, "where KV events are published"),
    ("kv_replay_endpoint", str, "where they are told again"),
    ("kv_topic", str, "their topic"),
    ("keep_log", int, "requests kept for /fake/log"),
)


def add_to(commands: Any) -> None:
    """Add the command to the parser of `python -m loadtest`."""
    names = "\n".join(f"  {name:18} {text}" for name, (_, text) in KNOWN.items())
    parser = commands.add_parser(
        "replica",
        help="a vLLM-shaped server without a GPU",
        description="A vLLM-shaped server without a GPU.",
        epilog=f"misbehaviours (N is the value):\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, required=True, help="0 = any free one")
    parser.add_argument("--host", default="127.0.0.1")
    for name, kind, text in _FLAGS:
        default = getattr(_DEFAULT, name)
        shown = text if default is None else f"{text} (default: {default})"
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=kind, default=default, help=shown, metavar="X"
        )
    parser.add_argument(
        "--fake",
        default="",
        metavar="NAME[=value],...",
        help="misbehaviours of every request; one request asks with the header x-fake or with "
        '"user": "fake:NAME=value" in its body',
    )
    parser.add_argument("--certificate", type=Path, help="serve TLS with this PEM file")
    parser.add_argument("--key", type=Path, help="the certificate's key")
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.kv_events not in ENCODINGS:
        arguments.parser.error(f"--kv-events is one of {', '.join(ENCODINGS)}")
    if arguments.engine not in ENGINES:
        arguments.parser.error(f"--engine is one of {', '.join(ENGINES)}")
    try:
        parse_behaviour(arguments.fake)
    except ValueError as error:
        arguments.parser.error(str(error))
    values = {name: getattr(arguments, name) for name, _, _ in _FLAGS}
    options = ReplicaOptions(**values, behaviour=arguments.fake, keep_bodies=False)
    tls = None
    if arguments.certificate:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(arguments.certificate, arguments.key)
    replica = FakeReplica(options, host=arguments.host, port=arguments.port, tls=tls, on_exit=_die)
    uvloop.run(_serve(replica))
    return 0


def _die() -> None:
    """`exit_mid`: gone at once, as a killed process is."""
    os.kill(os.getpid(), signal.SIGKILL)


async def _serve(replica: FakeReplica) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await replica.start()
    print(f"fake replica of {replica.options.model} on {replica.url}", flush=True)
    await stop.wait()
    await replica.close()
