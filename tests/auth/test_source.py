from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from auth import source as source_module
from auth.board import UNUSED_S, Board
from auth.fetcher import FetchFailed
from auth.key_copy import KeyCopy
from auth.refresh import BURST
from auth.source import STATES, KeySource
from core.errors import Unavailable
from core.metrics import Metrics

WALL = 1_700_000_000.0

MakeKey = Callable[..., Any]
MakeSource = Callable[..., KeySource]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics.private()


@pytest.fixture
async def make_source(make_issuer: Any, clock: Any, metrics: Metrics) -> AsyncIterator[MakeSource]:
    made: list[KeySource] = []

    async def tick(_: float) -> None:
        await asyncio.sleep(0)

    def make(
        fetcher: Any, board: Board | None = None, copy: KeyCopy | None = None, **jwks: Any
    ) -> KeySource:
        source = KeySource(
            make_issuer(jwks=jwks),
            slot=(board or Board(1)).slot("a", 0.0),
            fetcher=fetcher,
            fetches=metrics.counter("headrace_jwks_fetch_total", "", ("issuer", "result")),
            workers=metrics.gauge("headrace_jwks_workers", "", ("issuer", "state")),
            clock=clock,
            sleep=tick,
            copy=copy,
            wall_clock=lambda: WALL + clock.now,
        )
        made.append(source)
        return source

    yield make
    for source in made:
        await source.close()


async def find(source: KeySource, kid: str) -> Any:
    return source.find(kid, "ES256") or await source.find_fresh(kid, "ES256")


async def settle(turns: int = 30) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def test_a_new_key_is_found_by_the_first_token(
    make_key: MakeKey, make_source: MakeSource, make_fetcher: Any, clock: Any
) -> None:
    fetcher = make_fetcher(make_key("a").jwk)
    source = make_source(fetcher)
    assert (await find(source, "a")).key_id == "a"
    epoch = source.epoch
    clock.now += 60
    fetcher.keys.append(make_key("b").jwk)
    assert (await find(source, "b")).key_id == "b"
    assert fetcher.count == 2
    assert source.epoch != epoch


async def test_a_flood_of_unknown_keys_one_after_the_other(
    make_key: MakeKey, make_source: MakeSource, make_fetcher: Any, clock: Any
) -> None:
    fetcher = make_fetcher(make_key("a").jwk)
    source = make_source(fetcher)
    for number in range(1000):
        assert await find(source, f"unknown {number}") is None
        clock.now += 0.001
    assert fetcher.count == BURST
    for second in range(100):
        clock.now += 1
        await find(source, f"later {second}")
    # From 1 to 101 seconds after the first fetch, at one per ten seconds.
    assert fetcher.count == BURST + 10


@pytest.mark.parametrize("fails", [False, True])
async def test_a_flood_of_unknown_keys_all_at_once(
    make_key: MakeKey, make_source: MakeSource, make_fetcher: Any, clock: Any, fails: bool
) -> None:
    fetcher = make_fetcher(make_key("a").jwk)
    source = make_source(fetcher)
    await find(source, "a")
    clock.now += 100
    if fails:
        fetcher.fault = FetchFailed("status", "status 500")
    fetcher.gate = asyncio.Event()
    calls = [asyncio.create_task(find(source, str(number))) for number in range(1000)]
    await settle()
    fetcher.gate.set()
    assert await asyncio.gather(*calls) == [None] * 1000
    assert fetcher.count <= BURST
    assert source.find("a", "ES256") is not None


@pytest.mark.parametrize("new_after_s", [0.0, 3.0, 9.9])
async def test_a_rotation_in_a_flood_waits_one_cool_down_at_most(
    make_key: MakeKey,
    make_source: MakeSource,
    make_fetcher: Any,
    clock: Any,
    new_after_s: float,
) -> None:
    fetcher = make_fetcher(make_key("a").jwk)
    source = make_source(fetcher)
    await find(source, "a")
    for number in range(10):
        await find(source, f"unknown {number}")
    clock.now += new_after_s
    rotated_at = clock.now
    fetcher.keys = [make_key("b").jwk]
    number = 0
    while await find(source, "b") is None:
        for _ in range(50):
            number += 1
            await find(source, f"flood {number}")
        clock.now += 0.25
        assert clock.now - rotated_at <= 10
    assert source.find("a", "ES256") is None


async def test_one_unknown_key_again_and_again_leaves_the_burst_alone(
    make_key: MakeKey, make_source: MakeSource, make_fetcher: Any, clock: Any
) -> None:
    fetcher = make_fetcher(make_key("a").jwk)
    source = make_source(fetcher)
    for _ in range(300):
        await find(source, "wrong")
        clock.now += 0.1
    assert fetcher.count == 3
    fetcher.keys.append(make_key("b").jwk)
    assert await find(source, "b") is not None


async def test_tokens_share_the_fetch_in_flight(
    make_key: MakeKey, make_source: MakeSource, make_fetcher: Any
) -> None:
    fetcher = make_fetcher(make_key("a").jwk)
    fetcher.gate = asyncio.Event()
    source = make_source(fetcher)
    calls = [asyncio.create_task(find(source, "a")) for _ in range(100)]
    await settle()
    fetcher.gate.set()
    keys = await asyncio.gather(*calls)
    assert {key.key_id for key in keys} == {"a"}
    assert fetcher.count == 1


async def test_a_token_that_came_during_a_fetch_gets_one_of_its_own(
    make_key: MakeKey, make_source: MakeSource, make_fetcher: Any, clock: Any
) -> None:
    """The answer in flight may have been made before the new key was published."""
    fetcher = make_fetcher(make_key("a").jwk)
    gate = fetcher.gate = asyncio.Event()
    source = make_source(fetcher)
    first = asyncio.create_task(find(source, "a"))
    await settle()
    clock.now += 1
    second = asyncio.create_task(find(source, "b"))
    await settle()
    fetcher.gate = None
    gate.set()
    assert await first is not None
    fetcher.keys.append(make_key("b").jwk)
    assert await second is not None
    assert fetcher.count == 2


async def test_a_waiter_that_leaves_does_not_end_the_fetch(
    make_key: MakeKey, make_source: MakeSource, make_fetcher: Any
) -> None:
    fetcher = make_fetcher(make_key("a").jwk)
    fetcher.gate = asyncio.Event()
    source = make_source(fetcher)
    leaver, stayer = (asyncio.create_task(find(source, "a")) for _ in range(2))
    await settle()
    leaver.cancel()
    await settle()
    fetcher.gate.set()
    assert await stayer is not None
    assert fetcher.count == 1


async def test_without_any_keys_it_is_our_fault(
    make_source: MakeSource, make_fetcher: Any, clock: Any
) -> None:
    fetcher = make_fetcher()
    fetcher.fault = FetchFailed("unreachable", "no connection")
    source = make_source(fetcher)
    assert source.ready() is not None
    for number in range(5):
        with pytest.raises(Unavailable) as caught:
            await find(source, f"unknown {number}")
        clock.now += 0.1
        assert (caught.value.retry_after_s or 0) >= 1
    assert fetcher.count == BURST
    assert "no connection" in (source.ready() or "")


async def test_stale_keys_serve_while_none_can_be_fetched(
    make_key: MakeKey,
    make_source: MakeSource,
    make_fetcher: Any,
    clock: Any,
    metrics: Metrics,
) -> None:
    fetcher = make_fetcher(make_key("a").jwk)
    source = make_source(fetcher)
    source.start()
    await settle()
    started_at, good = clock.now, fetcher.count
    assert (good, source.ready()) == (1, None)
    fetcher.fault = FetchFailed("timeout", "no answer")
    while clock.now < started_at + 3600:
        clock.now += 5
        await settle(10)  # enough for a fetch to begin and to end
        assert source.find("a", "ES256") is not None
    assert 3600 / 60 - 6 <= fetcher.count - good <= BURST + 3600 / 10
    assert metrics.value("headrace_jwks_workers", "https://id.example", "stale") == 1
    clock.now = started_at + 24 * 3600 + 1
    await settle()
    assert source.find("a", "ES256") is None
    assert source.ready() is not None
    fetcher.fault = None
    clock.now += 60
    await settle()
    assert source.ready() is None
    assert metrics.value("headrace_jwks_workers", "https://id.example", "fresh") == 1


async def test_it_recovers_by_itself(
    make_key: MakeKey, make_source: MakeSource, make_fetcher: Any, clock: Any, metrics: Metrics
) -> None:
    fetcher = make_fetcher(make_key("a").jwk)
    fetcher.fault = FetchFailed("unreachable", "no connection")
    source = make_source(fetcher)
    source.start()
    for _ in range(20):
        clock.now += 1
        await settle()
    assert source.ready() is not None
    fetcher.fault = None
    for _ in range(60):
        clock.now += 1
        await settle()
    assert source.ready() is None
    assert metrics.value("headrace_jwks_fetch_total", "https://id.example", "ok") == 1
    assert metrics.value("headrace_jwks_fetch_total", "https://id.example", "unreachable") >= 3


async def test_a_removed_key_is_gone_after_the_refresh(
    make_key: MakeKey, make_source: MakeSource, make_fetcher: Any, clock: Any
) -> None:
    fetcher = make_fetcher(make_key("a").jwk, make_key("b").jwk)
    source = make_source(fetcher)
    source.start()
    await settle()
    epoch = source.epoch
    fetcher.keys.pop(0)
    clock.now += 301
    await settle()
    assert source.find("a", "ES256") is None
    assert source.find("b", "ES256") is not None
    assert source.epoch != epoch


async def test_the_same_keys_again_change_nothing(
    make_key: MakeKey, make_source: MakeSource, make_fetcher: Any, clock: Any
) -> None:
    fetcher = make_fetcher(make_key("a").jwk)
    source = make_source(fetcher)
    source.start()
    await settle()
    epoch = source.epoch
    clock.now += 301
    await settle()
    assert (fetcher.count, source.epoch, source.age()) == (2, epoch, 0)


@pytest.mark.parametrize("keys", [[], [{"kty": "oct", "k": "AAAA"}]])
async def test_an_unusable_document_keeps_the_last_good_one(
    make_key: MakeKey,
    make_source: MakeSource,
    make_fetcher: Any,
    clock: Any,
    keys: list[Any],
) -> None:
    fetcher = make_fetcher(make_key("a").jwk)
    source = make_source(fetcher)
    await find(source, "a")
    fetcher.keys = keys
    clock.now += 100
    assert await find(source, "b") is None
    assert fetcher.count == 2
    assert source.find("a", "ES256") is not None


async def test_another_worker_takes_the_keys_from_the_board(
    make_key: MakeKey, make_source: MakeSource, make_fetcher: Any, clock: Any
) -> None:
    board, fetcher = Board(1), make_fetcher(make_key("a").jwk)
    first, second = make_source(fetcher, board), make_source(fetcher, board)
    await find(first, "a")
    assert second.ready() is None
    assert second.find("a", "ES256") is not None
    clock.now += 20
    fetcher.keys = [make_key("b").jwk]
    await find(second, "b")
    assert first.find("b", "ES256") is not None
    assert first.find("a", "ES256") is None
    assert fetcher.count == 2


async def test_another_worker_waits_for_the_fetch_in_flight(
    make_key: MakeKey, make_source: MakeSource, make_fetcher: Any
) -> None:
    board, fetcher = Board(1), make_fetcher(make_key("a").jwk)
    fetcher.gate = asyncio.Event()
    first, second = make_source(fetcher, board), make_source(fetcher, board)
    calls = [asyncio.create_task(find(source, "a")) for source in (first, second) for _ in "12"]
    await settle()
    fetcher.gate.set()
    assert all(await asyncio.gather(*calls))
    assert fetcher.count == 1


async def test_two_workers_share_the_allowance(
    make_key: MakeKey, make_source: MakeSource, make_fetcher: Any, clock: Any
) -> None:
    board, fetcher = Board(1), make_fetcher(make_key("a").jwk)
    sources = [make_source(fetcher, board) for _ in range(2)]
    for source in sources:
        source.start()
    for second in range(60):
        for number, source in enumerate(sources):
            await find(source, f"unknown {number} {second}")
        clock.now += 1
    assert BURST <= fetcher.count <= BURST + 6


async def test_a_keeper_follows_when_another_worker_never_ends(
    make_source: MakeSource, make_fetcher: Any, make_key: MakeKey, clock: Any
) -> None:
    board, fetcher = Board(1), make_fetcher(make_key("a").jwk)
    assert board.slot("a", 0.0).claim()
    source = make_source(fetcher, board)
    call = asyncio.create_task(find(source, "a"))
    for _ in range(30):
        clock.now += 1
        await settle()
    with pytest.raises(Unavailable):
        await call
    assert fetcher.count == 0


async def test_too_many_waiters_are_sent_away(
    make_source: MakeSource,
    make_fetcher: Any,
    make_key: MakeKey,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_module, "MAX_WAITING", 2)
    fetcher = make_fetcher(make_key("a").jwk)
    fetcher.gate = asyncio.Event()
    source = make_source(fetcher)
    calls = [asyncio.create_task(find(source, "a")) for _ in range(2)]
    await settle()
    with pytest.raises(Unavailable):
        await find(source, "a")
    fetcher.gate.set()
    assert all(await asyncio.gather(*calls))


async def test_close_lets_waiters_go_and_frees_the_claim(
    make_source: MakeSource, make_fetcher: Any, make_key: MakeKey
) -> None:
    board, fetcher = Board(1), make_fetcher(make_key("a").jwk)
    fetcher.gate = asyncio.Event()
    source = make_source(fetcher, board)
    source.start()
    call = asyncio.create_task(find(source, "a"))
    await settle()
    await source.close()
    with pytest.raises(Unavailable):
        await call
    assert board.slot("a", 0.0).claim()
    assert fetcher.count == 1


async def test_a_slot_that_was_given_away_is_found_again(
    make_key: MakeKey, make_source: MakeSource, make_fetcher: Any, clock: Any
) -> None:
    """A process that stood still for so long must not take another issuer's keys for its own."""
    board = Board(1)
    fetcher = make_fetcher(make_key("a").jwk)
    source = make_source(fetcher, board)
    assert (await find(source, "a")).key_id == "a"
    clock.now += UNUSED_S
    other = board.slot("other", clock.now)
    other.publish(orjson.dumps({"keys": [make_key("a").jwk]}))
    assert source.find("a", "ES256") is None
    assert (await find(source, "a")).key_id == "a"
    assert fetcher.count == 2
    assert other.read() is not None


async def test_two_sources_of_one_issuer_are_counted_together(
    make_key: MakeKey, make_source: MakeSource, make_fetcher: Any, metrics: Metrics
) -> None:
    """A reload starts the next one before it ends the last."""

    def shown() -> list[float]:
        name = "headrace_jwks_workers"
        return [metrics.value(name, "https://id.example", state) for state in STATES]

    board = Board(1)
    first, second = (make_source(make_fetcher(make_key("a").jwk), board) for _ in range(2))
    first.start()
    await settle()
    assert shown() == [1, 0, 0]
    second.start()
    await settle()
    assert shown() == [2, 0, 0]
    await first.close()
    assert shown() == [1, 0, 0]
    await second.close()
    assert shown() == [0, 0, 0]


class Outage:
    """A source that has fetched the key `a` and kept it, and others that cannot fetch."""

    def __init__(self, make_source: MakeSource, fetcher: Any, copy: KeyCopy) -> None:
        self.fetcher = fetcher
        self.copy = copy
        self._make = make_source

    async def begin(self) -> None:
        source = self._make(self.fetcher, copy=self.copy)
        assert await find(source, "a") is not None
        await source.close()
        self.fetcher.fault = FetchFailed("unreachable", "no connection")

    async def restart(self) -> KeySource:
        source = self._make(self.fetcher, copy=self.copy)
        await source.restore()
        return source


@pytest.fixture
async def outage(
    make_key: MakeKey, make_source: MakeSource, make_fetcher: Any, tmp_path: Path
) -> Outage:
    made = Outage(make_source, make_fetcher(make_key("a").jwk), KeyCopy(str(tmp_path), "a"))
    await made.begin()
    return made


async def test_a_restart_in_an_outage_goes_on_with_the_copy(outage: Outage, clock: Any) -> None:
    clock.now += 3600
    source = await outage.restart()
    assert source.ready() is None
    assert source.age() == 3600
    assert source.find("a", "ES256") is not None
    assert await find(source, "b") is None


async def test_a_copy_ages_across_restarts(outage: Outage, clock: Any) -> None:
    for _ in range(2):
        clock.now += 12 * 3600
        source = await outage.restart()
        assert source.ready() is None
    clock.now += 1
    assert source.ready() is not None
    assert (await outage.restart()).ready() is not None


async def test_a_removed_key_is_refused_after_the_first_fetch(
    outage: Outage, make_key: MakeKey
) -> None:
    outage.fetcher.fault = None
    outage.fetcher.keys = [make_key("b").jwk]
    source = await outage.restart()
    assert source.find("a", "ES256") is not None
    assert await find(source, "b") is not None
    assert source.find("a", "ES256") is None


async def test_a_copy_that_is_no_key_set_is_left_alone(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    outage.copy.write(b"{}", WALL)
    assert (await outage.restart()).ready() is not None
    assert "cannot use the kept key set" in caplog.text


async def test_what_was_fetched_is_not_replaced_by_a_copy(
    outage: Outage, make_source: MakeSource, make_fetcher: Any, make_key: MakeKey
) -> None:
    board = Board(1)
    fetched = make_source(make_fetcher(make_key("b").jwk), board)
    assert await find(fetched, "b") is not None
    late = make_source(outage.fetcher, board, outage.copy)
    await late.restore()
    assert late.find("a", "ES256") is None
    assert late.find("b", "ES256") is not None


async def test_a_folder_that_cannot_be_written_costs_nothing_but_a_line(
    make_key: MakeKey,
    make_source: MakeSource,
    make_fetcher: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").touch()
    copy = KeyCopy(str(tmp_path / "file"), "a")
    source = make_source(make_fetcher(make_key("a").jwk), copy=copy)
    assert await find(source, "a") is not None
    await source.close()
    assert "cannot keep the key set" in caplog.text
