"""Asks replicas whether they take token ids (`token_ids.py`), until each has answered.

A replica that has refused a connection may come back as another version: it is asked again, and
gets texts until then.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Hashable, Iterable, Mapping

from backend.asker import Asker
from backend.config import ReplicaConfig, UpstreamConfig
from backend.dialer import Dialer
from backend.token_ids import MAX_ANSWER_BYTES, Accepted, interview
from core.errors import GatewayError
from core.identity import identity
from core.prompt import Samples
from core.tasks import spawn

_log = logging.getLogger("headrace.backend")
_FIRST_S, _MOST_S = 1.0, 30.0
_TIMEOUT_S = 30.0  # a replica that has much to do answers late


class _Unanswered(Exception):
    """The replica cannot tell now."""


class _Probe:
    """One replica that is asked."""

    def __init__(self, made_of: Hashable, asker: Asker, model: str, samples: Samples) -> None:
        self.made_of = made_of
        self.accepted: Accepted | None = None
        self._asker = asker
        self._model = model
        self._samples = samples
        self._again = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<_Probe of {self._asker.id} {self.accepted}>"

    def start(self) -> None:
        self.task = spawn(self._run(), f"token ids {self._asker.id}")

    def refused(self) -> None:
        self.accepted = None
        self._again.set()

    async def _run(self) -> None:
        wait_s = _FIRST_S
        while True:
            self._again.clear()
            try:
                accepted = await self._ask()
            except (_Unanswered, GatewayError, TimeoutError):
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _MOST_S)
                continue
            if self._again.is_set():  # it has refused meanwhile
                continue
            wait_s = _FIRST_S
            self.accepted = accepted
            _log.info("replica %s takes token ids: %s", self._asker.id, accepted.why)
            await self._again.wait()

    async def _ask(self) -> Accepted:
        """Raises _Unanswered, GatewayError or TimeoutError."""
        steps = interview(self._model, self._samples)
        question = next(steps)
        while True:
            status, body = await self._asker.post(
                question.path, question.body, _TIMEOUT_S, MAX_ANSWER_BYTES
            )
            if status >= 500 or status == 429:
                raise _Unanswered
            try:
                question = steps.send(body if status == 200 else None)
            except StopIteration as end:
                accepted: Accepted = end.value
                return accepted


class TokenProbes:
    """What replicas take, by their ids."""

    def __init__(self) -> None:
        self._probes: dict[str, _Probe] = {}
        self._started = False

    def __repr__(self) -> str:
        return f"<TokenProbes {self._probes}>"

    def accepted(self, replica_id: str) -> Accepted | None:
        """None while it is not known, and for replicas that are not asked."""
        probe = self._probes.get(replica_id)
        return None if probe is None else probe.accepted

    def refused(self, replica_id: str) -> None:
        """It has refused a connection."""
        if (probe := self._probes.get(replica_id)) is not None:
            probe.refused()

    def use(
        self,
        replicas: Iterable[ReplicaConfig],
        *,
        upstream: UpstreamConfig,
        contexts: Mapping[str, ssl.SSLContext],
        samples_of: Callable[[str], Samples | None],
    ) -> None:
        """Ask these from now on. What is known of one that is reached as before, and has to make
        the same prompts, stays. Raises ConfigError when a key cannot be read."""
        before, self._probes = self._probes, {}
        for config in replicas:
            off = upstream.token_ids == "off" or not config.dialect.own_fields
            if off or config.role == "prefill":
                continue
            samples = samples_of(config.model)
            if samples is None:
                continue
            replica_id = config.replica.id
            reached = (config.url, config.protocol, config.tls, config.api_key)
            made_of = identity((reached, config.model, upstream.timeouts)), repr(samples)
            old = before.get(replica_id)
            if old is not None and old.made_of == made_of:
                self._probes[replica_id] = before.pop(replica_id)
                continue
            asker = Asker(Dialer(config, upstream, contexts.get(replica_id)))
            probe = self._probes[replica_id] = _Probe(made_of, asker, config.model, samples)
            if self._started:
                probe.start()
        for gone in before.values():
            if gone.task is not None:
                gone.task.cancel()

    def start(self) -> None:
        self._started = True
        for probe in self._probes.values():
            probe.start()

    async def close(self) -> None:
        self._started = False
        tasks = [probe.task for probe in self._probes.values() if probe.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
