"""Responses that vLLM gave, and those that another parser is tested with."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from beside import SHARED, all_beside
from replica_wire import Wire


def dechunk(body: bytes) -> bytes | None:
    """None for what is no whole chunked body (some captures keep only head and tail)."""
    out = b""
    while body:
        line, _, body = body.partition(b"\r\n")
        try:
            size = int(line, 16)
        except ValueError:
            return None
        out, body = out + body[:size], body[size + 2 :]
    return out


@pytest.mark.parametrize(
    "path", sorted((SHARED / "vllm" / "fixtures").rglob("*.bin")), ids=lambda path: path.stem
)
def test_vllm_captures_at_random_splits(path: Path) -> None:
    raw = path.read_bytes()
    head, separator, body = raw.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 ") or not separator:
        pytest.skip("a part of a response")
    chunked = b"transfer-encoding: chunked" in head.lower()
    expected = dechunk(body) if chunked else body
    whole = expected is not None and (not chunked or raw.endswith(b"0\r\n\r\n"))
    source = random.Random(path.stem)
    for _ in range(3):
        wire = Wire()
        _, reader = wire.request()
        at = 0
        while at < len(raw):
            size = source.choice((1, 7, 100, 1500, 20000))
            wire.feed(raw[at : at + size])
            at += size
        if not reader.over:
            wire.hang_up()
        assert reader.over
        if whole:
            assert reader.ended
            assert reader.status == int(head.split()[1])
            assert reader.body == expected


def test_llhttp_responses_never_crash() -> None:
    seen = 0
    for file in all_beside("corpora/llhttp/test/response", "*.md"):
        for raw in re.findall(r"```http\n(.*?)```", file.read_text(), re.S):
            data = raw.removesuffix("\n").replace("\n", "\r\n")
            data = data.replace("\\r", "\r").replace("\\n", "\n").replace("\\t", "\t")
            for step in (1, 1 << 20):
                wire = Wire()
                _, reader = wire.request()
                blob = data.encode()
                wire.feed(*(blob[at : at + step] for at in range(0, len(blob), step)))
                wire.hang_up()
                assert reader.over
                seen += 1
    assert seen > 40
