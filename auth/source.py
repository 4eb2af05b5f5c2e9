"""One issuer's key set, kept fresh. Performs what `auth/refresh.py` decides."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from jwt import PyJWK

from auth.board import Slot
from auth.config import IssuerConfig
from auth.fetcher import Fetcher, FetchFailed
from auth.key_copy import KeyCopy
from auth.keyset import KeySet, KeySetError
from auth.refresh import AbsentKeys, RefreshPolicy
from core.clock import Clock
from core.errors import Unavailable
from core.metrics import Counter, Gauge
from core.tasks import spawn

MAX_WAITING = 1024
"""Tokens that wait for a fetch at the same time; further ones are told to come again."""

STATES = ("fresh", "stale", "none")
_FOLLOW_POLL_S = 0.02
_LONGEST_SLEEP_S = 30.0
_ROUNDS = 3

_log = logging.getLogger("headrace.auth")


class KeySource:
    """The key set of one issuer in this process, and the task that keeps it.

    `epoch` changes whenever another key set takes effect: what was verified under an earlier one
    must be verified again.
    """

    def __init__(
        self,
        issuer: IssuerConfig,
        *,
        slot: Slot,
        fetcher: Fetcher,
        fetches: Counter,
        workers: Gauge,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        copy: KeyCopy | None = None,
        wall_clock: Clock = time.time,
    ) -> None:
        self.issuer = issuer
        jwks = issuer.jwks
        self._policy = RefreshPolicy(jwks.refresh_s, jwks.cool_down_s, jwks.stale_for_s)
        self._absent = AbsentKeys(jwks.cool_down_s)
        self._slot = slot
        self._read_generation = slot.read_generation
        self._fetcher = fetcher
        self._fetches = fetches
        self._workers = workers
        self._clock = clock
        self._sleep = sleep
        self._copy = copy
        self._wall_clock = wall_clock
        self._copying: asyncio.Task[None] | None = None
        self._key_set: KeySet | None = None
        self._loaded = 0
        self._epoch = 0
        self._flight: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._waiting = 0
        self._closed = False
        self._fault = ""
        self._shown: str | None = None

    def __repr__(self) -> str:
        return f"KeySource({self.issuer.issuer!r}, epoch={self._epoch}, {self._key_set!r})"

    async def restore(self) -> None:
        """Begin with the copy on disk, as old as it is, where nothing was fetched on this host."""
        if self._copy is None or self._slot.history.success_at is not None:
            return
        try:
            found = await asyncio.to_thread(self._copy.read, self._wall_clock())
        except OSError as error:
            _log.warning("cannot use the kept key set of %s: %s", self.issuer.issuer, error)
            return
        if found is None or not self._slot.claim():
            return
        try:
            self._take_over(found.document, self._clock() - found.age_s)
        except KeySetError as error:
            _log.warning("cannot use the kept key set of %s: %s", self.issuer.issuer, error)
        finally:
            self._slot.release()

    def _take_over(self, document: bytes, success_at: float) -> None:
        history = replace(self._slot.history, success_at=success_at)
        usable = self._policy.is_usable(history, self._clock())
        if not usable or self._slot.history.success_at is not None:
            return
        KeySet.parse(document, self.issuer.algorithms)
        self._slot.publish(document)
        self._slot.history = history
        _log.info("key set of %s taken from disk", self.issuer.issuer)

    def start(self) -> None:
        if self._keeper is None:
            self._keeper = spawn(self._keep(), f"key set of {self.issuer.issuer}")

    async def close(self) -> None:
        """Stop keeping the set. A fetch in flight ends too, and whoever waits for it is let go."""
        self._closed = True
        tasks = [task for task in (self._keeper, self._flight) if task is not None]
        for task in tasks:
            task.cancel()
        if self._copying is not None:  # it is about to be over, and nothing can stop its thread
            tasks.append(self._copying)
        if tasks:
            await asyncio.wait(tasks)
        self._show_state(None)

    def ready(self) -> str | None:
        self._follow_slot()
        if self._key_set is not None:
            return None
        failed = self._slot.history.failures
        fault = self._fault or ("the last fetch failed" if failed else "not fetched yet")
        return f"no key set of the issuer {self.issuer.issuer}: {fault}"

    def age(self) -> float | None:
        """Seconds since the set was last known to be the issuer's, None before the first."""
        success_at = self._slot.history.success_at
        return None if success_at is None else self._clock() - success_at

    @property
    def epoch(self) -> int:
        if self._read_generation() != self._loaded:
            self._follow_slot()
        return self._epoch

    def find(self, kid: str | None, algorithm: str) -> PyJWK | None:
        """The key among those at hand."""
        if self._slot.generation != self._loaded:
            self._follow_slot()
        return None if self._key_set is None else self._key_set.find(kid, algorithm)

    async def find_fresh(self, kid: str | None, algorithm: str) -> PyJWK | None:
        """The key, after a fetch that began no earlier than this call if the allowance has one.

        Joins a fetch that is in flight, here or in another worker. Raises Unavailable when there
        is no key set at all, or when too many wait.
        """
        if self._absent.holds(kid, algorithm, self._clock()):
            self._refuse_without_keys()
            return None
        if self._waiting >= MAX_WAITING:
            raise Unavailable("Too many requests wait for signing keys.", retry_after_s=1.0)
        self._waiting += 1
        try:
            return await self._wait_for(kid, algorithm, self._clock())
        finally:
            self._waiting -= 1

    def absent_until(self, kid: str | None, algorithm: str) -> float:
        """Until when no fetch would be made for this key, as none has brought it lately, or the
        allowance is used up. Another key set, whoever fetches it, makes another `epoch`."""
        allowed_at = self._policy.allowed_at(self._slot.history)
        return max(allowed_at, self._absent.until(kid, algorithm))

    async def _wait_for(self, kid: str | None, algorithm: str, arrived_at: float) -> PyJWK | None:
        for _ in range(_ROUNDS):
            flight = self._take_off(arrived_at)
            if flight is None:
                break
            await asyncio.wait({flight})
            key = self.find(kid, algorithm)
            if key is not None:
                return key
        if (self._slot.history.attempt_at or 0.0) >= arrived_at:
            self._absent.remember(kid, algorithm, self._clock())
        self._refuse_without_keys()
        return None

    def _refuse_without_keys(self) -> None:
        """No such key is the token's fault, unless we have no keys to know that from."""
        if self._key_set is not None:
            return
        next_at = self._policy.due_at(self._slot.history, 1.0)
        retry_after_s = max(1.0, next_at - self._clock())
        raise Unavailable("No signing keys are at hand.", retry_after_s=retry_after_s)

    def _take_off(self, since: float) -> asyncio.Task[None] | None:
        """A fetch to wait for: the one in flight here, else one of another worker's, else a new
        one. None when one has begun at `since` or later, or when the allowance is used up."""
        if self._flight is not None or self._closed:
            return self._flight
        if not self._slot.claim():
            return self._fly(self._follow(), "another worker's fetch of a key set")
        now, history = self._clock(), self._slot.history
        was_later = history.attempt_at is not None and history.attempt_at >= since
        if was_later or now < self._policy.allowed_at(history):
            self._slot.release()
            self._follow_slot()
            return None
        self._slot.history = self._policy.begun(history, now)
        flight = self._fly(self._fetch(), "fetch of a key set")
        # Not in a `finally` of the task: one that is cancelled before its first step has none.
        slot = self._slot
        flight.add_done_callback(lambda _: slot.release())
        return flight

    def _fly(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        self._flight = flight = spawn(work, name)
        flight.add_done_callback(self._landed)
        return flight

    def _landed(self, flight: asyncio.Task[None]) -> None:
        """Runs before anything that waits for `flight` does: callbacks keep their order."""
        self._flight = None
        self._follow_slot()

    async def _fetch(self) -> None:
        """Fetch and publish, holding the claim."""
        try:
            document = await self._fetcher.fetch()
            key_set = KeySet.parse(document, self.issuer.algorithms)
        except FetchFailed as error:
            self._failed(error.result, str(error))
        except KeySetError as error:
            self._failed("unusable", str(error))
        else:
            self._succeeded(document, key_set)

    def _succeeded(self, document: bytes, key_set: KeySet) -> None:
        history = self._slot.history
        self._slot.publish(document)
        self._slot.history = self._policy.succeeded(history)
        self._fetches.labels(self.issuer.issuer, "ok").inc()
        self._fault = ""
        if self._copy is not None and self._copying is None:
            keeping = self._keep_copy(self._copy, document)
            self._copying = spawn(keeping, f"copy of the key set of {self.issuer.issuer}")
        if history.failures > 1 or history.success_at is None:
            _log.info("key set of %s fetched: %r", self.issuer.issuer, key_set)

    async def _keep_copy(self, copy: KeyCopy, document: bytes) -> None:
        try:
            await asyncio.to_thread(copy.write, document, self._wall_clock())
        except (OSError, ValueError) as error:
            _log.warning("cannot keep the key set of %s: %s", self.issuer.issuer, error)
        finally:
            self._copying = None

    def _failed(self, result: str, fault: str) -> None:
        self._fault = f"the last fetch failed: {fault}"
        self._fetches.labels(self.issuer.issuer, result).inc()
        if self._slot.history.failures == 1:
            _log.warning("cannot fetch the key set of %s: %s", self.issuer.issuer, fault)

    async def _follow(self) -> None:
        """Wait until whichever worker fetches is done or dead, and not much longer than it may."""
        give_up_at = self._clock() + self.issuer.jwks.timeout_s + 1.0
        while not self._slot.claim():
            if self._clock() > give_up_at:
                return
            await self._sleep(_FOLLOW_POLL_S)
        self._slot.release()

    def _follow_slot(self) -> None:
        """Take over what the board has; give up a set that has become too old."""
        if not self._slot.held:
            self._slot = self._slot.again(self._clock())
            self._read_generation = self._slot.read_generation
            self._loaded = 0
        usable = self._policy.is_usable(self._slot.history, self._clock())
        if not usable:
            self._replace(None, 0)
        elif self._slot.generation != self._loaded and (current := self._slot.read()) is not None:
            generation, document = current
            try:
                self._replace(KeySet.parse(document, self.issuer.algorithms), generation)
            except KeySetError:
                self._replace(None, generation)

    def _replace(self, key_set: KeySet | None, generation: int) -> None:
        if key_set is not None or self._key_set is not None:
            self._epoch += 1
        self._key_set = key_set
        self._loaded = generation

    async def _keep(self) -> None:
        """Fetch whenever it is due, for as long as the process serves."""
        jitter = random.random()
        while True:
            self._follow_slot()
            self._slot.touch(self._clock())
            self._show()
            now, history = self._clock(), self._slot.history
            wait_s = self._policy.due_at(history, jitter) - now
            if wait_s > 0:
                await self._sleep(min(wait_s, _LONGEST_SLEEP_S))
                continue
            since = math.nextafter(history.attempt_at or 0.0, math.inf)
            flight = self._take_off(since)
            if flight is None:
                await self._sleep(_FOLLOW_POLL_S)
            else:
                await asyncio.wait({flight})
            jitter = random.random()

    def _show(self) -> None:
        age = self.age()
        state = "none"
        if self._key_set is not None and age is not None:
            state = "fresh" if age <= 2 * self.issuer.jwks.refresh_s else "stale"
        self._show_state(state)

    def _show_state(self, state: str | None) -> None:
        """By differences: while a reload takes place two sources of one issuer count together."""
        if state == self._shown:
            return
        for name in STATES:
            gauge = self._workers.labels(self.issuer.issuer, name)
            gauge.inc(float(name == state) - float(name == self._shown))
        self._shown = state
