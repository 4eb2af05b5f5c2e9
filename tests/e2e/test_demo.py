"""`headrace demo` as a user runs it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import ssl
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
from client import Client, chat, events
from running import ROOT

START_S = 60.0


@asynccontextmanager
async def demo(folder: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Its temporary files go to `folder`. It is started with SIGINT ignored, as scripts start what
    is to run in the background."""
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", 'trap "" INT; exec "$@"', "sh"),
        *(sys.executable, "-m", "proxy.serve", "demo", *arguments),
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def processes_of(folder: Path) -> list[str]:
    """The command lines of the processes that the demo started: their files are in its folder, or
    its variables are their own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if f"TMPDIR={folder}\0".encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
    return found


def assert_nothing_left(folder: Path) -> None:
    assert processes_of(folder) == []
    assert list(folder.iterdir()) == []


async def test_once_asks_one_question_and_leaves_nothing(tmp_path: Path) -> None:
    async with demo(tmp_path, "--once") as process:
        out, err = await asyncio.wait_for(process.communicate(), START_S)
        assert process.returncode == 0, err
        assert b"Traceback" not in err
    question, _, rest = out.decode().partition("\n\n")
    answer, _, rest = rest.partition("\n\n")
    assert question == "> In one sentence: what does a headrace do?"
    assert len(answer.split()) == 48
    summary, *phases = rest.strip().splitlines()
    assert re.match(r"200 replica-[12]  cached 0 of \d+ tokens  TTFT [\d.]+ ms  added ", summary)
    times = {name: float(value) for name, value, _ in map(str.split, phases)}
    assert list(times) == ["auth", "tokenize", "reserve", "route", "connect", "first_token"]
    assert times["first_token"] > 20  # the replica's own 20 ms
    assert all(milliseconds > 0 for milliseconds in times.values())
    assert_nothing_left(tmp_path)


async def test_it_serves_what_it_prints_until_interrupted(tmp_path: Path) -> None:
    async with demo(tmp_path) as process:
        assert process.stdout is not None
        said = (
            await asyncio.wait_for(process.stdout.readuntil(b"as they end:\n\n"), START_S)
        ).decode()
        curl = said[said.index("curl -N") :]
        (authority,) = re.findall(r"--cacert (\S+)", curl)
        (port,) = re.findall(r"https://localhost:(\d+)/v1/chat/completions", curl)
        (token,) = re.findall(r"'authorization: Bearer (\S+)'", curl)
        (body,) = re.findall(r"-d '(.*)'", curl)
        context = ssl.create_default_context(cafile=authority)
        client = await Client.open(int(port), context)
        client.send(body.encode(), headers={"Authorization": f"Bearer {token}"})
        answer = await client.answer()
        assert answer.status == 200
        assert answer.complete
        assert answer.text
        line = (await process.stdout.readline()).decode()
        assert re.match(r"200 replica-[12]  cached \d+ of \d+ tokens ", line)
        # A stream that would go on for a minute does not hold the end up.
        client.send(
            chat(user="fake:token_ms=500", max_tokens=120),
            headers={"Authorization": f"Bearer {token}"},
        )
        assert (await client.head()).status == 200
        interrupted_at = time.monotonic()
        process.send_signal(signal.SIGINT)
        received = b""
        while chunk := await client.chunk():
            received += chunk
        assert chunk is None
        assert "error" in orjson.loads(events(received)[-1])
        client.close()
        _, err = await process.communicate()
        assert process.returncode == 0
        assert time.monotonic() - interrupted_at < 30  # of the 60
        assert b"Traceback" not in err
    assert_nothing_left(tmp_path)


async def test_an_interrupted_start_leaves_nothing(tmp_path: Path) -> None:
    async with demo(tmp_path) as process:

        async def started() -> None:
            while not any("loadtest replica" in line for line in processes_of(tmp_path)):
                assert process.returncode is None
                await asyncio.sleep(0.02)

        await asyncio.wait_for(started(), START_S)
        process.send_signal(signal.SIGINT)
        _, err = await asyncio.wait_for(process.communicate(), START_S)
        assert process.returncode == 0
        assert b"Traceback" not in err
    assert_nothing_left(tmp_path)
