from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.line_sink import LINE_BYTES
from proxy.serve.logs import (
    KEYS,
    PER_LOGGER,
    PER_MESSAGE,
    WINDOW_S,
    MessageLimiter,
    json_line,
    set_up_logging,
)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    root, ours = logging.getLogger(), logging.getLogger("headrace")
    levels = root.level, ours.level
    handler = set_up_logging("info", target=str(tmp_path / "log"))
    yield tmp_path / "log"
    root.removeHandler(handler)
    handler.close()
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_a_record_becomes_one_json_line_at_once(target: Path) -> None:
    try:
        raise KeyError("why\nnot")
    except KeyError:
        logging.getLogger("headrace.x").exception("failed with %s", "a\nb\x1b")
    (line,) = lines(target)
    assert line["level"] == "error"
    assert line["logger"] == "headrace.x"
    assert line["message"] == "failed with a\nb\x1b"
    assert "KeyError" in str(line["trace"])
    assert str(line["time"]).endswith("+00:00")


def test_a_trace_has_no_words_that_may_quote_a_prompt(target: Path) -> None:
    try:
        try:
            raise ValueError("canary")
        except ValueError as error:
            raise OSError(28, "no space") from error
    except OSError:
        logging.getLogger("headrace.x").exception("failed")
    text = target.read_text()
    trace = str(lines(target)[0]["trace"])
    assert trace.splitlines()[-1] == "OSError: [Errno 28] no space"
    assert "\nValueError\n" in trace
    assert "test_logs.py" in trace
    assert text.count("canary") == 1  # in the line of code


def test_the_level_holds_for_us_and_warning_for_libraries(target: Path) -> None:
    for name in ("headrace.x", "library"):
        for level in (logging.DEBUG, logging.INFO, logging.WARNING):
            logging.getLogger(name).log(level, "m")
    assert [(line["logger"], line["level"]) for line in lines(target)] == [
        ("headrace.x", "info"),
        ("headrace.x", "warning"),
        ("library", "warning"),
    ]


def test_setting_up_again_replaces_the_handler(target: Path, tmp_path: Path) -> None:
    other = set_up_logging("warning", target=str(tmp_path / "other"))
    logging.getLogger("headrace.x").warning("m")
    assert target.read_bytes() == b""
    assert len(lines(tmp_path / "other")) == 1
    logging.getLogger().removeHandler(other)
    other.close()


def test_a_flood_of_one_message_is_held_back(target: Path) -> None:
    for index in range(1000):
        logging.getLogger("headrace.x").warning("peer %s is odd", index)
    logging.getLogger("headrace.x").warning("another message")
    assert len(lines(target)) == PER_MESSAGE + 1


def test_the_limiter_says_how_many_it_held_back() -> None:
    limiter = MessageLimiter()
    answers = [limiter.admit("l", "m", 5.0) for _ in range(PER_MESSAGE + 7)]
    assert answers == [0] * PER_MESSAGE + [None] * 7
    assert limiter.admit("l", "other", 5.0) == 0
    assert limiter.admit("l", "m", 5.0 + WINDOW_S) == 7
    assert limiter.admit("l", "m", 5.0 + WINDOW_S) == 0


def test_ever_new_messages_of_one_logger_are_held_back_too() -> None:
    limiter = MessageLimiter()
    answers = [limiter.admit("l", f"m{index}", 0.0) for index in range(PER_LOGGER + 5)]
    assert answers.count(0) == PER_LOGGER
    assert limiter.admit("quiet", "m", 0.0) == 0


def test_the_limiter_remembers_a_bounded_number() -> None:
    limiter = MessageLimiter()
    for index in range(5 * KEYS):
        limiter.admit(f"l{index}", "m", 0.0)
    assert len(limiter._windows) <= KEYS


def test_the_worst_record_fits_one_line() -> None:
    record = logging.LogRecord("headrace.x", logging.ERROR, "f", 1, "\U0001f600" * 9999, None, None)
    try:
        raise ValueError("\U0001f600" * 9999)
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    assert len(json_line(record, held_back=3)) <= LINE_BYTES


def test_arguments_that_do_not_fit_still_give_a_line() -> None:
    record = logging.LogRecord("l", logging.ERROR, "f", 1, "%d items", ("many",), None)
    assert json.loads(json_line(record))["message"] == "%d items"
