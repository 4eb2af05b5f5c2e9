"""Follows a shared list of revocations, off the path of requests. Performs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from auth.key_copy import KeyCopy
from auth.revocation import Revoked, is_name
from core.clock import Clock
from core.metrics import Gauge
from core.tasks import spawn

INTERVAL_S = 0.5

_log = logging.getLogger("headrace.auth")


class Listed(NamedTuple):
    """`version` changes whenever `names` do."""

    version: int
    names: frozenset[str]


class ListUnavailable(Exception):
    """The list cannot be had at the moment. `str()` says why."""


class RevocationList(Protocol):
    def read(self, version: int | None) -> Listed | None:
        """What is listed; None when `version` is still its version, or there is none. Blocks.
        Raises ListUnavailable."""


class RevocationWatch:
    """Keeps `revoked` as the list is, together with the names that are `always` revoked.

    While the list cannot be had, the names that were there last hold, over a restart too (`copy`).
    A list that is gone from its store is no reason to forget names.
    """

    def __init__(
        self,
        source: RevocationList,
        revoked: Revoked,
        *,
        always: frozenset[str],
        copy: KeyCopy | None,
        workers: Gauge,
        wall_clock: Clock = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._source = source
        self._revoked = revoked
        self._always = always
        self._copy = copy
        self._workers = workers
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._version: int | None = None
        self._known = False
        self._fault: str | None = None
        self._keeper: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<RevocationWatch version={self._version} {self._revoked!r}>"

    async def start(self) -> None:
        """Returns once the list was read, or could not be."""
        await self.look()
        if not self._known and self._copy is not None:
            await asyncio.to_thread(self._restore, self._copy)
        self._keeper = spawn(self._keep(), "revocations")

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        self._say(None)

    async def look(self) -> None:
        """Take over what is listed now."""
        try:
            listed = await asyncio.to_thread(self._read)
        except ListUnavailable as error:
            self._say(str(error))
            return
        self._say(None)
        self._known = True
        if listed is not None:
            self._version = listed.version
            self._revoked.names = self._always | listed.names

    async def _keep(self) -> None:
        while True:
            await self._sleep(INTERVAL_S)
            await self.look()

    def _read(self) -> Listed | None:
        listed = self._source.read(self._version)
        if listed is not None and self._copy is not None:
            try:
                self._copy.write("\n".join(sorted(listed.names)).encode(), self._wall_clock())
            except (OSError, ValueError) as error:
                _log.warning("cannot keep the revocations: %s", error)
        return listed

    def _restore(self, copy: KeyCopy) -> None:
        try:
            kept = copy.read(self._wall_clock())
        except OSError as error:
            _log.warning("cannot use the kept revocations: %s", error)
            return
        if kept is not None:
            lines = kept.document.decode("utf-8", "replace").split("\n")
            self._revoked.names = self._always | frozenset(filter(is_name, lines))

    def _say(self, fault: str | None) -> None:
        """One line for each change, and how many workers are without the list."""
        if (fault is None) != (self._fault is None):
            self._workers.inc(-1.0 if fault is None else 1.0)
            if fault is None:
                _log.info("revocations: followed again")
            else:
                _log.warning("revocations cannot be followed: %s", fault)
        self._fault = fault
