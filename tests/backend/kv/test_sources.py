"""Where replicas say that their KV events are."""

from __future__ import annotations

import json

import pytest

from backend.config import KvEventsConfig
from backend.kv.sources import Source, configured, told_by


def one(endpoint: object, host: str = "10.0.0.7", **fields: object) -> Source | None:
    body = json.dumps({"0": {"publisher": "zmq", "endpoint": endpoint, **fields}})
    return told_by(body.encode(), host).get(0)


def test_ranks() -> None:
    body = json.dumps(
        {
            "0": {"endpoint": "tcp://10.1.1.1:5557", "replay_endpoint": "tcp://10.1.1.1:6557"},
            "1": {"endpoint": "ipc:///tmp/x", "topic": "kv@m", "replay_endpoint": None},
            "2": {"endpoint": "tcp://h:1", "enable_kv_cache_events": False},
            "3": {"endpoint": "tcp://h:1", "publisher": "null"},
            "x": {"endpoint": "tcp://h:1"},
            "4": 7,
        }
    ).encode()
    assert told_by(body, "h") == {
        0: Source("tcp://10.1.1.1:5557", "tcp://10.1.1.1:6557", ""),
        1: Source("ipc:///tmp/x", None, "kv@m"),
    }


@pytest.mark.parametrize("anywhere", ["*", "0.0.0.0", "[::]", "::"])
def test_any_address_is_the_replicas_own(anywhere: str) -> None:
    assert one(f"tcp://{anywhere}:5557") == Source("tcp://10.0.0.7:5557", None, "")
    assert one(f"tcp://{anywhere}:5557", host="fd00::7") == Source("tcp://[fd00::7]:5557", None, "")


@pytest.mark.parametrize("odd", [None, 7, "", "http://h:1", "tcp://h:*", "tcp://*:0", "inproc://x"])
def test_what_cannot_be_reached_is_left_out(odd: object) -> None:
    assert one(odd) is None


@pytest.mark.parametrize("body", [b"", b"[]", b"7", b'{"detail": "Not Found"}', b"\xff"])
def test_other_answers(body: bytes) -> None:
    assert told_by(body, "h") == {}


def test_configured() -> None:
    config = KvEventsConfig(endpoint="tcp://127.0.0.1:5557", topic="kv", bind=True)
    assert configured(config) == {0: Source("tcp://127.0.0.1:5557", None, "kv", True)}
