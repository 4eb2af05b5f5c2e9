"""Whatever is sent, no more than the one intended request may reach the handler."""

from __future__ import annotations

import ast
import asyncio
import logging
import re
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from edge import Reply, replies
from hostile import AMBIGUOUS_BODIES, REFUSED, SMUGGLED, chunked, request

from core.errors import GatewayError
from core.exchange import Request
from core.load_board import LoadBoard
from core.metrics import Metrics
from proxy.config import ListenAddress, ListenConfig, ListenTimeouts
from proxy.flow import Watchdog
from proxy.http1.exchange import Http1Exchange
from proxy.listen.listener import Listener
from proxy.overload.admission import Admission

CORPORA = Path(__file__).parents[3] / "shared" / "corpora"
LLHTTP = sorted((CORPORA / "llhttp" / "test" / "request").glob("*.md"))
SMUGGLER = sorted((CORPORA / "smuggler" / "configs").glob("*.py"))

# Short, so that what the gateway takes for incomplete ends soon.
TIMEOUTS = ListenTimeouts(head_s=0.5, body_s=0.5, body_min_rate=0, keep_alive_s=0.5)
SETTINGS = ListenConfig(addresses=(ListenAddress("127.0.0.1:0"),), tls="off", timeouts=TIMEOUTS)

T = TypeVar("T")


@dataclass
class Served:
    """A listening gateway whose handler answers 200 and echoes the body, and what it saw."""

    port: int
    requests: list[Request] = field(default_factory=list)
    refusals: list[GatewayError] = field(default_factory=list)

    async def handle(self, exchange: Http1Exchange) -> None:
        self.requests.append(exchange.request)
        body = b"%b %b\n%b" % (
            exchange.request.method.encode(),
            exchange.request.path.encode(),
            exchange.request.body,
        )
        if exchange.request.method == "HEAD":
            body = b""
        exchange.start(200, [(b"content-type", b"text/plain")], len(body))
        exchange.write(body)
        exchange.finish()

    async def converse(self, *pieces: bytes) -> list[Reply]:
        """Send the pieces and read until the gateway closes; what it answered."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            written = await reader.read()
        except ConnectionError:
            written = b""
        writer.close()
        return replies(written)


async def together(conversations: list[Coroutine[Any, Any, T]]) -> list[T]:
    """All of them, a hundred at a time."""
    found: list[T] = []
    for start in range(0, len(conversations), 100):
        found += await asyncio.gather(*conversations[start : start + 100])
    return found


@asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    watchdog = Watchdog(tick_s=0.05)
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(256)
    sock.setblocking(False)
    served = Served(sock.getsockname()[1])
    metrics = Metrics.private()
    listener = Listener(
        handler=served.handle,
        on_refused=lambda exchange, error: served.refusals.append(error),
        watchdog=watchdog,
        settings=SETTINGS,
        admission=Admission(SETTINGS.limits, metrics),
        board=LoadBoard(1),
        index=0,
        most_connections=1000,
        metrics=metrics,
    )
    faults: list[dict[str, Any]] = []
    listener.loop.set_exception_handler(lambda loop, context: faults.append(context))
    await listener.serve(sock, None)
    watchdog.start()
    try:
        yield served
    finally:
        await listener.drain(1.0)
        watchdog.close()
    assert faults == []


@pytest.fixture
async def served(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Served]:
    with caplog.at_level(logging.WARNING):
        async with serving() as served:
            yield served
    assert caplog.records == []


def assert_refused(name: str, answers: list[Reply], status: int | None = None) -> None:
    assert len(answers) == 1, name
    assert 400 <= answers[0].status <= 499, name
    assert status in (None, answers[0].status), name
    assert answers[0].headers[b"connection"] == b"close", name


async def test_doubtful_heads_reach_nobody(served: Served) -> None:
    answers = await together(
        [served.converse(data + SMUGGLED) for data, _ in REFUSED.values()],
    )
    for (name, (_, status)), answer in zip(REFUSED.items(), answers, strict=True):
        assert_refused(name, answer, status)
    assert served.requests == []
    assert len(served.refusals) == len(REFUSED)


async def test_doubtful_heads_in_two_pieces_reach_nobody(served: Served) -> None:
    cases = [
        (name, data[:cut], data[cut:] + SMUGGLED)
        for name, (data, _) in REFUSED.items()
        for cut in (5, len(data) // 2, len(data) - 3)
    ]
    answers = await together([served.converse(*pieces) for _, *pieces in cases])
    for (name, *_), answer in zip(cases, answers, strict=True):
        assert_refused(name, answer)
    assert served.requests == []


async def test_doubtful_chunked_bodies_reach_nobody(served: Served) -> None:
    answers = await together(
        [served.converse(chunked(body=body + SMUGGLED)) for body in AMBIGUOUS_BODIES.values()]
    )
    for name, answer in zip(AMBIGUOUS_BODIES, answers, strict=True):
        assert_refused(name, answer, 400)
    assert served.requests == []


async def test_a_refusal_is_read_even_while_the_client_is_still_sending(served: Served) -> None:
    head = request(b"Content-Length: 8000000")
    answers = await served.converse(head, *[b"a" * 65_536] * 16)
    assert_refused("a large body", answers, 413)


async def test_an_incomplete_request_reaches_nobody(served: Served) -> None:
    whole = [request(b"Content-Length: 5", body=b"hello"), chunked(body=b"5\r\nhello\r\n0\r\n\r\n")]
    parts = [data[:end] for data in whole for end in range(1, len(data))]
    answers = await together([served.converse(part) for part in parts])
    for part, answer in zip(parts, answers, strict=True):
        assert_refused(repr(part), answer, 408)
    assert served.requests == []


async def test_good_requests_are_answered_in_order(served: Served) -> None:
    pipeline = b"".join(
        request(b"Content-Length: %d" % n, line=b"POST /%d HTTP/1.1" % n, body=b"b" * n)
        for n in range(20)
    )
    [first, second] = await together(
        [
            served.converse(pipeline),
            served.converse(*[pipeline[n : n + 7] for n in range(0, len(pipeline), 7)]),
        ]
    )
    assert [reply.body for reply in first] == [b"POST /%d\n%b" % (n, b"b" * n) for n in range(20)]
    assert [reply.body for reply in second] == [reply.body for reply in first]


# --- other people's cases


@dataclass
class Case:
    """`complete`: how many messages llhttp finds in it; `lenient` when told to be."""

    name: str
    data: bytes
    lenient: bool
    refused: bool
    complete: int


def llhttp_cases() -> list[Case]:
    """The request cases of llhttp's own tests, from their Markdown files."""
    block = r"```%s\n((?:(?!```).)*)```\s*"
    meta = r'<!-- meta=\{"type": "(request[a-z-]*)"[^\n]*-->\s*'
    form = re.compile(meta + block % "http" + block % "log", re.DOTALL)
    found = []
    for path in LLHTTP:
        for kind, text, log in form.findall(path.read_text("utf-8")):
            name = f"{path.stem} {len(found)}"
            complete = len(re.findall("message complete", log))
            refused = "error code" in log
            found.append(Case(name, _unescape(text), kind != "request", refused, complete))
    return found


def _unescape(text: str) -> bytes:
    """As llhttp's test runner reads an example: its lines end with CRLF, escapes are bytes."""
    text = re.sub(r"\\\n", "", text.removesuffix("\n")).replace("\n", "\r\n")
    named = {"r": "\r", "n": "\n", "t": "\t", "f": "\f"}
    text = re.sub(r"\\([rntf])", lambda match: named[match[1]], text)
    text = re.sub(r"\\x([0-9a-fA-F]{1,2})", lambda match: chr(int(match[1], 16)), text)
    return text.encode("utf-8")


@pytest.mark.skipif(not LLHTTP, reason="no cases of llhttp at hand")
async def test_the_cases_of_llhttp(served: Served) -> None:
    cases = llhttp_cases()
    assert len(cases) > 100
    with_host = [
        (case, re.sub(rb"( HTTP/1\.[01]\r\n)", rb"\1Host: a\r\n", case.data)) for case in cases
    ]
    plain = await together([served.converse(case.data) for case in cases])
    hosted = await together([served.converse(data) for _, data in with_host])
    passed = 0
    for case, *answers in zip(cases, plain, hosted, strict=True):
        for answer in answers:
            reached = [reply for reply in answer if reply.status == 200]
            assert len(reached) <= case.complete, case
            assert all(r.status in (100, 200) or 400 <= r.status <= 499 for r in answer), case
            assert not any(r.status >= 400 for r in answer[:-1]), case
            if case.lenient and case.refused:
                assert reached == [], case
            passed += len(reached)
    assert passed > 20


def gadgets() -> list[bytes]:
    """The header lines of smuggler's mutations, read from its sources without running them."""
    form = re.compile(r'render_template\("((?:[^"\\]|\\.)*)"(?:\s*%\s*\((i(?:,i)*)\))?\)')
    found = []
    for path in SMUGGLER:
        numbers: list[int] = []
        for line in path.read_text("utf-8").splitlines():
            if loop := re.match(r"for i in (range\((.*)\)|\[.*\]):", line):
                listed = ast.literal_eval(loop[1] if loop[2] is None else f"[{loop[2]}]")
                numbers = listed if loop[2] is None else list(range(*listed))
            if match := form.search(line):
                text = ast.literal_eval(f'"{match[1]}"')
                count = len(match[2].split(",")) if match[2] else 0
                texts = [text % ((n,) * count) for n in numbers] if count else [text]
                found += [text.encode("latin-1") for text in texts]
    return sorted(set(found))


OWN_GADGETS = [
    name + colon + value
    for name in (
        b"Transfer-Encoding",
        b"transfer_encoding",
        b"Transfer Encoding",
        b"X: a\x0bb\x00TE",
    )
    for colon in (b":", b" :", b": ", b":\t", b":\x0b", b":\xa0", b"\x00:")
    for value in (
        b"chunked",
        b"chunked ",
        b"chunked\x00",
        b'"chunked"',
        b"x, chunked",
        b"\rchunked",
    )
]


async def assert_harmless(served: Served, lines: list[bytes]) -> None:
    """With a Content-Length that covers everything, each line may only be refused or ignored."""
    body = b"0\r\n\r\n" + SMUGGLED
    length = b"Content-Length: %d" % len(body)
    for order in (False, True):
        datas = [
            request(*((line, length) if order else (length, line)), body=body) for line in lines
        ]
        answers = await together([served.converse(data) for data in datas])
        for line, answer in zip(lines, answers, strict=True):
            assert len(answer) == 1, line
            if answer[0].status == 200:
                assert answer[0].body == b"POST /v1/x\n" + body, line
                assert re.fullmatch(rb"[!#-'*+.0-9A-Z^`a-z|~-]+:[\t -~\x80-\xff]*", line), line
                assert not line.lower().startswith(b"transfer-encoding:"), line
            else:
                assert_refused(repr(line), answer)
    assert not any(got.path == "/smuggled" for got in served.requests)


async def test_own_gadgets(served: Served) -> None:
    await assert_harmless(served, OWN_GADGETS)


@pytest.mark.skipif(not SMUGGLER, reason="no gadgets of smuggler at hand")
async def test_the_gadgets_of_smuggler(served: Served) -> None:
    lines = gadgets()
    assert len(lines) > 1000
    await assert_harmless(served, lines)
