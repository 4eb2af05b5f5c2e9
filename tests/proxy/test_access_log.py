from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ConfigError
from core.metrics import Metrics
from proxy.access_log import AccessLog, AccessRecord, _careful_line, milliseconds
from proxy.line_sink import LINE_BYTES

DROPPED = "headrace_access_log_dropped_total"
NOW = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics.private()


@pytest.fixture
def log(tmp_path: Path, metrics: Metrics) -> Iterator[AccessLog]:
    log = AccessLog(str(tmp_path / "log"), metrics, wall=lambda: NOW)
    yield log
    log.close()


def lines(tmp_path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (tmp_path / "log").read_bytes().splitlines()]


async def test_a_record_becomes_one_line_without_what_is_unset(
    log: AccessLog, tmp_path: Path
) -> None:
    log.write(
        AccessRecord(request_id="r1", status=200, reason="ok", stream=False, ttft_ms=1.5, tries=0)
    )
    assert lines(tmp_path) == []
    log.flush()
    assert lines(tmp_path) == [
        {
            "request_id": "r1",
            "time": "2026-03-01T12:30:15.123456Z",
            "status": 200,
            "reason": "ok",
            "stream": False,
            "ttft_ms": 1.5,
            "tries": 0,
        }
    ]


async def test_a_record_may_bring_its_own_time(log: AccessLog, tmp_path: Path) -> None:
    log.write(AccessRecord(request_id="r", time=NOW.replace(year=2001)))
    log.flush()
    assert lines(tmp_path)[0]["time"] == "2001-03-01T12:30:15.123456Z"


async def test_many_lines_are_written_before_the_timer(log: AccessLog, tmp_path: Path) -> None:
    for index in range(1000):
        log.write(AccessRecord(request_id=str(index)))
    written = len((tmp_path / "log").read_bytes().splitlines())
    assert 0 < written < 1000
    log.close()
    assert [line["request_id"] for line in lines(tmp_path)] == [str(i) for i in range(1000)]


@pytest.mark.parametrize("hostile", ["a\nb", "\x1b[31m", "\u009b31m", "\u2028", '"}{"', "\x7f\x00"])
async def test_hostile_text_stays_inside_its_field(
    hostile: str, log: AccessLog, tmp_path: Path
) -> None:
    log.write(AccessRecord(request_id="r", model=hostile))
    log.flush()
    raw = (tmp_path / "log").read_bytes()
    assert raw.isascii()
    assert raw.count(b"\n") == 1
    assert b"\x1b" not in raw
    assert json.loads(raw)["model"] == hostile


async def test_text_that_is_no_unicode_is_still_logged(log: AccessLog, tmp_path: Path) -> None:
    log.write(AccessRecord(request_id="r", model="\ud800x"))
    log.flush()
    assert lines(tmp_path)[0]["model"] == "?x"


async def test_a_long_text_is_cut_not_lost(
    log: AccessLog, tmp_path: Path, metrics: Metrics
) -> None:
    log.write(AccessRecord(request_id="r", model="m" * 10_000, status=404))
    log.flush()
    assert lines(tmp_path)[0]["model"] == "m" * 256
    assert lines(tmp_path)[0]["status"] == 404
    assert metrics.value(DROPPED) == 0.0


TEXTS = [
    field.name for field in msgspec.structs.fields(AccessRecord) if field.type in (str, str | None)
]


def test_even_the_worst_record_fits_one_line() -> None:
    record = AccessRecord(request_id="", time=NOW)
    for field in msgspec.structs.fields(AccessRecord):
        if field.name in TEXTS:
            setattr(record, field.name, "\U0001f600" * 10_000)
        elif field.name.endswith("_ms"):
            setattr(record, field.name, 123456789.123)
        elif field.name != "time":
            setattr(record, field.name, 2**53)
    assert len(TEXTS) > 8
    assert len(_careful_line(record)) <= LINE_BYTES


@given(st.dictionaries(st.sampled_from(TEXTS), st.text(max_size=60), max_size=4))
def test_any_text_gives_one_ascii_line_that_parses(texts: dict[str, str]) -> None:
    line = _careful_line(AccessRecord(**{"request_id": "r", **texts}))
    assert line.isascii()
    assert line.index(b"\n") == len(line) - 1 < LINE_BYTES
    assert set(json.loads(line)) == {"request_id", *texts}


async def test_a_full_pipe_is_counted_and_does_not_stop_the_writer(
    tmp_path: Path, metrics: Metrics
) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    log = AccessLog(str(tmp_path / "pipe"), metrics)
    for index in range(10_000):
        log.write(AccessRecord(request_id=str(index), peer="p" * 100))
    log.close()
    taken = os.read(reader, 1 << 20)
    assert taken.endswith(b"}\n")
    assert len(taken.splitlines()) + metrics.value(DROPPED) == 10_000
    os.close(reader)


async def test_off_writes_nothing(metrics: Metrics) -> None:
    log = AccessLog("off", metrics)
    log.write(AccessRecord(request_id="r"))
    log.flush()
    log.close()
    assert metrics.value(DROPPED) == 0.0


def test_a_bad_target_is_refused(metrics: Metrics) -> None:
    with pytest.raises(ConfigError):
        AccessLog("/nowhere/log", metrics)


def test_milliseconds_are_rounded_to_microseconds() -> None:
    assert milliseconds(0.0123456789) == 12.345


@pytest.mark.parametrize("target", ["off", "log"])
async def test_phases_are_counted_with_the_line(
    target: str, tmp_path: Path, metrics: Metrics
) -> None:
    log = AccessLog(target if target == "off" else str(tmp_path / target), metrics)
    trail = [("auth", 1.0), ("first_token", 1.25), ("relay", 1.5), ("", 2.0)]
    for model in ("demo", None):
        log.write(AccessRecord(request_id="r", model=model, ttft_ms=500.0, trail=trail))
    assert metrics.value("headrace_phase_seconds", "auth") == 0
    log.flush()
    assert metrics.value("headrace_phase_seconds", "auth") == 1
    assert metrics.value("headrace_phase_seconds", "relay") == 1
    assert metrics.value("headrace_gateway_seconds") == 1
    log.close()
    if target == "log":
        line = lines(tmp_path)[0]
        assert (line["auth_ms"], line["relay_ms"], "trail" in line) == (250.0, 500.0, False)
