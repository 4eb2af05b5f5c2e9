"""Event streams that real engines sent, and those that another parser is tested with."""

from __future__ import annotations

import ast
import re

from beside import all_beside
from scanning import scan
from sse import cut


def body_of(capture: bytes) -> bytes:
    """The body of a recorded response, its chunks joined."""
    head, _, data = capture.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1"):
        return capture
    body = b""
    while match := re.match(rb"([0-9a-f]+)\r\n", data):
        start, size = match.end(), int(match[1], 16)
        body += data[start : start + size]
        data = data[start + size + 2 :]
    return body


def test_recorded_streams() -> None:
    for path in all_beside("vllm/fixtures", "sse_*.bin", "rust/sse_*.bin"):
        body = body_of(path.read_bytes())
        usage = re.findall(rb'data: \{[^\n]*"choices":\[\],"usage":\{[^\n]*\n\n', body)
        for step in (1, 7, 100, 1000, 100_000):
            pieces = cut(body, list(range(0, len(body), step)))
            plain, seen = scan(pieces, strip=False)
            stripped, also = scan(pieces, strip=True)
            assert plain == body, path
            assert stripped == body.replace(usage[0], b"") if usage else stripped == body, path
            assert (seen.events, seen.usage, seen.terminated) == (
                also.events,
                also.usage,
                also.terminated,
            )
            assert seen.terminated == (b"data: [DONE]\n\n" in body), path
            assert (seen.error is not None) == (b'data: {"error"' in body), path


def literals() -> list[bytes]:
    """The streams in the test sources of another parser, from their string literals."""
    found = []
    for path in all_beside("corpora/eventsource-parser/test", "*.ts"):
        for text in re.findall(r"'(?:[^'\\\n]|\\.)*'", path.read_text("utf-8")):
            if "\\n" in text or "\\r" in text:
                found.append(ast.literal_eval(text).encode("utf-8", "surrogatepass"))
    return found


def test_streams_of_another_parser() -> None:
    streams = literals()
    assert len(streams) > 10
    for data in [*streams, b"".join(streams)]:
        for strip in (False, True):
            assert scan([data], strip=strip)[0] == data
            assert scan([bytes([byte]) for byte in data], strip=strip)[0] == data
