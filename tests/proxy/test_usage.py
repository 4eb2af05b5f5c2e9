from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from core.errors import ConfigError
from core.metrics import Metrics
from proxy.access_log import AccessRecord
from proxy.config import UsageConfig, UsageFile
from proxy.line_sink import LINE_BYTES
from proxy.usage import UsageLog, make_usage_log, usage_line
from ratelimit.config import RedisConfig

NOW = datetime(2026, 3, 1, 12, 30, 15, tzinfo=UTC)
DROPPED = "headrace_usage_dropped_total"


class Lines:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.closed = False
        self.waiting_bytes = 0

    def put(self, line: bytes) -> None:
        self.lines.append(line)

    def flush(self) -> None: ...

    def close(self) -> None:
        self.closed = True


class Stream(Lines):
    """A sink that is connected; `told` are its starts and stops, and what it had by then."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    async def start(self) -> None:
        self.told.append("start")

    async def stop(self) -> None:
        self.told.append(("stop", len(self.lines)))


def charged(**more: Any) -> AccessRecord:
    return AccessRecord(request_id="r1", time=NOW, settled_tokens=10, reason="ok", **more)


def test_a_line_says_who_used_what_and_how_it_ended() -> None:
    record = charged(
        organisation="group",
        tenant="acme",
        subject="bob",
        key="k1",
        model="m",
        route="/v1/chat/completions",
        prompt_tokens=7,
        cached_tokens=4,
        completion_tokens=3,
        tokens_estimated=True,
        cost_units=0.25,
        status=200,
        replica="r0",
        total_ms=12.5,
        peer="192.0.2.1",
    )
    line = usage_line(record)
    assert line.endswith(b"\n")
    assert json.loads(line) == {
        "time": "2026-03-01T12:30:15Z",
        "request_id": "r1",
        "organisation": "group",
        "tenant": "acme",
        "user": "bob",
        "key": "k1",
        "model": "m",
        "route": "/v1/chat/completions",
        "prompt_tokens": 7,
        "cached_tokens": 4,
        "completion_tokens": 3,
        "estimated": True,
        "cost_units": 0.25,
        "reason": "ok",
        "status": 200,
        "replica": "r0",
        "duration_ms": 12.5,
    }


def test_a_line_fits_into_one_write_whatever_the_names_are() -> None:
    line = usage_line(charged(tenant="\u2028" * 5000, subject="\ud800" * 5000, key="k" * 5000))
    assert len(line) <= LINE_BYTES
    assert line.isascii()
    assert json.loads(line)["request_id"] == "r1"


async def test_only_what_was_charged_is_recorded() -> None:
    sink = Lines()
    log = UsageLog(sink, wall=lambda: NOW)
    log.write(AccessRecord(request_id="refused", reason="rate_limit_exceeded"))
    log.write(charged())
    log.write(AccessRecord(request_id="cut", settled_tokens=0, reason="client_gone"))
    assert sink.lines == []  # they gather
    await log.close()
    read = [json.loads(line) for line in sink.lines]
    assert [each["request_id"] for each in read] == ["r1", "cut"]
    assert read[1]["time"] == "2026-03-01T12:30:15Z"
    assert sink.closed


async def test_a_stream_is_stopped_once_it_has_everything() -> None:
    stream = Stream()
    log = UsageLog(stream, stream)  # type: ignore[arg-type]
    await log.start()
    log.write(charged())
    await log.close()
    assert stream.told == ["start", ("stop", 1)]
    assert stream.closed


async def test_a_file_gets_whole_lines_behind_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    path.write_text("before\n")
    log = make_usage_log(UsageConfig(file=UsageFile(path)), None, Metrics.private())
    await log.start()
    for _ in range(1000):
        log.write(charged())
    await log.close()
    lines = path.read_text().splitlines()
    assert (lines[0], len(lines)) == ("before", 1001)
    assert {json.loads(line)["request_id"] for line in lines[1:]} == {"r1"}


async def test_what_a_full_disk_refuses_is_counted() -> None:
    metrics = Metrics.private()
    log = make_usage_log(UsageConfig(file=UsageFile("/dev/full")), None, metrics)
    log.write(charged())
    await log.close()
    assert metrics.value(DROPPED) == 1


def test_what_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    config = UsageConfig(file=UsageFile(tmp_path / "no" / "usage"))
    with pytest.raises(ConfigError, match="cannot write"):
        make_usage_log(config, None, Metrics.private())
    with pytest.raises(ConfigError, match=r"usage\.redis_stream"):
        make_usage_log(UsageConfig(redis_stream="usage"), None, Metrics.private())


def test_a_stream_is_in_the_redis_of_the_limits() -> None:
    config = UsageConfig(redis_stream="headrace:usage")
    log = make_usage_log(config, RedisConfig(url="redis://cache:6379"), Metrics.private())
    assert "headrace:usage" in repr(log)
    assert "redis://cache:6379" in repr(log)


@pytest.mark.parametrize("given", [{}, {"file": UsageFile("/x"), "redis_stream": "y"}])
def test_there_is_one_place_for_usage(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="either `file` or `redis_stream`"):
        UsageConfig(**given)
