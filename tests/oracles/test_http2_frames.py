"""The frames of http2-frame-test-case: the good ones are read as meant, the bad ones refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from beside import all_beside
from http2_edge import Http2Edge
from http2_frames import POST, Reader

from core.http2 import frames
from core.http2.engine import ErrorCode
from core.http2.engines import EngineName
from core.http2.frames import frame
from core.http2.guard import FrameGuard


def cases(folder: str, *patterns: str) -> dict[str, Any]:
    paths = all_beside(f"corpora/http2-frame-test-case/{folder}", *patterns)
    return {f"{path.parent.name}/{path.stem}": json.loads(path.read_text()) for path in paths}


def test_good_frames_are_read_as_meant() -> None:
    for name, case in cases("", "*/normal.json", "*/header.json", "*/priority.json").items():
        wire, expected = bytes.fromhex(case["wire"]), case["frame"]
        reader = Reader()
        head = frame(expected["type"], expected["flags"], expected["stream_identifier"], wire[9:])
        assert head == wire, name
        guard = FrameGuard(max_header_bytes=65_536, now=1.0, preface=False)
        block = frame(frames.HEADERS, 0, 2**31 - 1, b"\x82")
        for byte in wire + block:
            assert guard.feed(bytes([byte]), 2.0, 0), name
        assert guard.block_since == 2.0, "the next frame begins where this one ends"
        if expected["type"] not in (frames.HEADERS, frames.DATA):
            [one] = reader.feed(wire)
            assert (one.kind, one.flags) == (expected["type"], expected["flags"]), name


@pytest.mark.parametrize("engine", ["nghttp2", "h2"])
def test_bad_frames_are_refused(engine: EngineName) -> None:
    for name, case in cases("error", "*.json").items():
        edge = Http2Edge(engine)
        edge.send(edge.client.head(1, POST), bytes.fromhex(case["wire"]))
        told = edge.reader.of(frames.GOAWAY) + edge.reader.of(frames.RST_STREAM)
        allowed = {*case["error"]} | ({ErrorCode.PROTOCOL_ERROR} if engine == "h2" else set())
        assert {one.code for one in told} & allowed, (name, told)
