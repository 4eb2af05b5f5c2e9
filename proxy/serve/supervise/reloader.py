"""Takes a changed configuration into a running gateway: when, one at a time, and for all workers.

The supervisor asks `advance` in each turn of its loop, and passes on what workers say.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from core.clock import Clock
from core.errors import ConfigError
from proxy.serve.supervise.messages import (
    Commit,
    Committed,
    Drop,
    Message,
    Outcome,
    Refused,
    Rejected,
    Stage,
    Staged,
)
from proxy.serve.supervise.rollout import Rollout, Step
from proxy.serve.supervise.watch import INTERVAL_S, Identity, Look, Watch, look_at

Answer = Callable[[Message], None]
_log = logging.getLogger("headrace.serve")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration that this process could read and build. `changed`: settings that differ from
    those in force. `built`: what workers forked from now on start from, once it is adopted."""

    text: bytes
    changed: tuple[str, ...]
    built: object


class Source(Protocol):
    """Where configurations come from."""

    @property
    def path(self) -> str:
        """The configuration file, absolute."""

    @property
    def watching(self) -> bool:
        """Whether changed files are to be taken unasked."""

    def load(self, seen: dict[str, Identity]) -> Candidate:
        """Read and build. Raises ConfigError. `seen` is filled with the files that are read, as
        they were before."""

    def adopt(self, candidate: Candidate) -> None:
        """From now on this one is in force."""

    def count(self, result: Literal["applied", "refused"]) -> None:
        """For the metrics."""


class Reloader:
    """`tell(message)` sends to every living worker and returns their indexes; `say(text)` tells
    the operator; `seen` are the files in force as they were before they were read. Instants are
    monotonic seconds; `wall` is the clock of the outcome."""

    def __init__(
        self,
        source: Source,
        tell: Callable[[Message], list[int]],
        say: Callable[[str], None],
        *,
        seen: Mapping[str, Identity],
        now: float,
        wall: Clock,
        look: Look = look_at,
    ) -> None:
        self._source = source
        self._tell = tell
        self._say = say
        self._wall = wall
        self._in_force = dict(seen)
        self._look = look
        self._watch = Watch(look)
        self._watch.expect(self._in_force)
        self._look_at = now + INTERVAL_S
        self._reasons: list[str] = []
        self._answers: list[Answer] = []
        self._attempts = 0
        self._rollout: Rollout | None = None
        self._candidate: Candidate | None = None
        self._changed: tuple[str, ...] = ()
        self._seen: dict[str, Identity] = {}
        self._why = ""
        self._asked: list[Answer] = []
        self.last = Outcome(at=wall())
        """What the newest reload came to; workers forked later are told."""

    def __repr__(self) -> str:
        return f"<Reloader {self.last.result} {self.last.generation} {self._rollout}>"

    @property
    def busy(self) -> bool:
        """Workers prepare a configuration: none may be forked, as it would miss it."""
        return self._rollout is not None

    @property
    def due_at(self) -> float:
        """When `advance` has something to do even if nothing happens."""
        if self._rollout is not None:
            return self._rollout.deadline_at
        if self._reasons:
            return -math.inf
        return self._look_at if self._source.watching else math.inf

    def want(self, why: str, answer: Answer | None = None) -> None:
        """Reload as soon as no reload is under way; `answer` is given its outcome. What is wanted
        meanwhile is one reload."""
        if why not in self._reasons:
            self._reasons.append(why)
        if answer is not None:
            self._answers.append(answer)

    def note(self, troubles: tuple[str, ...]) -> None:
        """What hinders the finding of replicas now, for the workers to say."""
        if troubles != self.last.troubles:
            self.last = msgspec.structs.replace(self.last, troubles=troubles)
            self._tell(self.last)

    def abandon(self, reason: str) -> None:
        """The gateway ends: nobody's wish will be fulfilled."""
        for answer in (*self._asked, *self._answers):
            answer(Rejected(reason))
        self._rollout = None
        self._reasons, self._answers, self._asked = [], [], []

    def heard(self, index: int, message: Message) -> None:
        """What a worker said; answers to an earlier attempt count for nothing."""
        rollout = self._rollout
        if rollout is None:
            return
        match message:
            case Staged(attempt=rollout.attempt):
                rollout.staged(index)
            case Refused(attempt=rollout.attempt, reason=reason):
                rollout.refused(index, reason)
            case Committed(attempt=rollout.attempt):
                rollout.committed(index)

    def died(self, index: int) -> None:
        if self._rollout is not None:
            self._rollout.died(index)

    def advance(self, now: float) -> None:
        """Do what is due."""
        if self._rollout is not None:
            self._step(self._rollout, now)
        elif now >= self._look_at and self._source.watching:
            self._look_at = now + INTERVAL_S
            if changed := self._watch.changed():
                self.want(f"{', '.join(changed)} changed")
        if self._rollout is None and self._reasons:
            self._begin(now)

    def _begin(self, now: float) -> None:
        self._why, self._reasons = ", ".join(self._reasons), []
        self._asked, self._answers = self._answers, []
        before = self._look(self._in_force)
        self._seen = {}
        fault = ""
        try:
            self._candidate = candidate = self._source.load(self._seen)
        except ConfigError as error:
            fault = str(error)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the service
            _log.exception("the configuration could not be loaded")
            fault = f"it could not be loaded: {error!r}"
        # With what a refused one points at, which may be there a moment later.
        self._watch.expect({**before, **self._seen})
        if fault:
            self._finish("refused", fault)
            return
        self._changed = (*candidate.changed, *self._changed_files())
        self._attempts += 1
        stage = Stage(self._attempts, candidate.text, self._source.path)
        self._rollout = Rollout(self._attempts, self._tell(stage), now)
        self._step(self._rollout, now)

    def _changed_files(self) -> list[str]:
        """Of those that the configuration points at."""
        return [
            path
            for path, identity in self._seen.items()
            if path != self._source.path and self._in_force.get(path, identity) != identity
        ]

    def _step(self, rollout: Rollout, now: float) -> None:
        while (step := rollout.step(now)) is not None:
            if step is Step.COMMIT and self._candidate is not None:
                self._tell(Commit(rollout.attempt))
                self._source.adopt(self._candidate)
                self._in_force = self._seen
                self._watch.expect(self._in_force)
            elif step is Step.DROP:
                self._tell(Drop(rollout.attempt))
                self._finish("refused", rollout.reason)
            else:
                self._finish("applied", "")

    def _finish(self, result: Literal["applied", "refused"], reason: str) -> None:
        self._rollout = self._candidate = None
        applied = result == "applied"
        generation = self.last.generation + applied
        changed = self._changed if applied else ()
        self.last = Outcome(generation, result, self._wall(), reason, changed, self.last.troubles)
        self._source.count(result)
        self._tell(self.last)
        for answer in self._asked:
            answer(self.last)
        self._asked = []
        if applied:
            words = f"changed: {', '.join(changed)}" if changed else "nothing changed"
            self._say(f"reloaded ({self._why}), generation {generation}; {words}")
        else:
            told = "; ".join(reason.splitlines())
            self._say(f"reload refused ({self._why}), generation {generation} goes on: {told}")
