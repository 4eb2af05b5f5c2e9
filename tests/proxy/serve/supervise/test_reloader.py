from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import pytest

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
from proxy.serve.supervise.reloader import Candidate, Reloader
from proxy.serve.supervise.rollout import TIMEOUT_S
from proxy.serve.supervise.watch import INTERVAL_S, Identity

PATH = "/etc/headrace.yaml"


class House:
    """A reloader, workers that answer when told to, and files that change when told to."""

    path = PATH

    def __init__(self, workers: int = 2) -> None:
        self.watching = True
        self.workers = list(range(workers))
        self.now = 100.0
        self.files: dict[str, int] = {PATH: 1}
        self.text = b"one"
        self.fault: Exception | None = None
        self.changed: tuple[str, ...] = ("$.models",)
        self.told: list[Message] = []
        self.said: list[str] = []
        self.answers: list[Message] = []
        self.adopted: list[Candidate] = []
        self.counted: list[str] = []
        self.reloader = Reloader(
            self,
            self._tell,
            self.said.append,
            seen=self.look(self.files),
            now=self.now,
            wall=lambda: self.now + 1e9,
            look=self.look,
        )

    def _tell(self, message: Message) -> list[int]:
        self.told.append(message)
        return self.workers

    def look(self, paths: Iterable[str]) -> dict[str, Identity]:
        sizes = {path: self.files.get(path, 0) for path in paths}
        return {path: (path, 1, 2, 3, size) if size else None for path, size in sizes.items()}

    # --- as a source

    def load(self, seen: dict[str, Identity]) -> Candidate:
        seen.update(self.look(self.files))
        if self.fault is not None:
            raise self.fault
        return Candidate(self.text, self.changed, None)

    def adopt(self, candidate: Candidate) -> None:
        self.adopted.append(candidate)

    def count(self, result: Literal["applied", "refused"]) -> None:
        self.counted.append(result)

    # --- what happens

    def want(self, why: str = "SIGHUP") -> None:
        self.reloader.want(why, self.answers.append)

    def go_on(self, seconds: float = 0.0) -> list[Message]:
        """Time passes; what workers are told meanwhile."""
        self.now += seconds
        self.told.clear()
        self.reloader.advance(self.now)
        return list(self.told)

    def all_say(self, kind: type[Staged] | type[Committed], attempt: int) -> list[Message]:
        for worker in self.workers:
            self.reloader.heard(worker, kind(attempt))
        return self.go_on()

    def applied(self, attempt: int) -> None:
        self.all_say(Staged, attempt)
        self.all_say(Committed, attempt)


def test_nothing_happens_unasked() -> None:
    house = House()
    for _ in range(5):
        assert house.go_on(INTERVAL_S) == []
    assert not house.reloader.busy
    assert house.reloader.last == Outcome(1, "started", 100 + 1e9)


def test_two_phases_and_an_answer() -> None:
    house = House()
    house.want()
    assert house.reloader.due_at == -math.inf
    assert house.go_on() == [Stage(1, b"one", PATH)]
    assert house.reloader.busy
    assert house.reloader.due_at == 100 + TIMEOUT_S
    assert house.answers == []
    assert house.adopted == []
    assert house.all_say(Staged, 1) == [Commit(1)]
    assert [candidate.text for candidate in house.adopted] == [b"one"]
    assert house.answers == []
    outcome = Outcome(2, "applied", 100 + 1e9, changed=("$.models",))
    assert house.all_say(Committed, 1) == [outcome]
    assert house.answers == [outcome]
    assert house.reloader.last == outcome
    assert house.counted == ["applied"]
    assert house.said == ["reloaded (SIGHUP), generation 2; changed: $.models"]
    assert not house.reloader.busy


def test_what_this_process_cannot_load_no_worker_is_shown() -> None:
    house = House()
    house.fault = ConfigError("$.a: one\n$.b: two")
    house.want()
    (outcome,) = house.go_on()
    assert outcome == Outcome(1, "refused", 100 + 1e9, "$.a: one\n$.b: two")
    assert house.answers == [outcome]
    assert house.adopted == []
    assert house.counted == ["refused"]
    assert house.said == ["reload refused (SIGHUP), generation 1 goes on: $.a: one; $.b: two"]


def test_a_fault_of_ours_is_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    house = House()
    house.fault = KeyError("oops")
    house.want()
    house.go_on()
    (outcome,) = house.answers
    assert isinstance(outcome, Outcome)
    assert outcome.reason == "it could not be loaded: KeyError('oops')"
    assert "could not be loaded" in caplog.text


def test_what_one_worker_refuses_all_drop() -> None:
    house = House()
    house.want()
    house.go_on()
    house.reloader.heard(0, Staged(1))
    house.reloader.heard(1, Refused(1, "$.a: not here"))
    drop, outcome = house.go_on()
    assert drop == Drop(1)
    assert outcome == Outcome(1, "refused", 100 + 1e9, "$.a: not here")
    assert house.adopted == []
    # The next attempt has another number, and late words of the first count for nothing.
    house.want()
    assert house.go_on() == [Stage(2, b"one", PATH)]
    house.reloader.heard(1, Refused(1, "late"))
    house.reloader.heard(1, Staged(1))
    assert house.all_say(Staged, 2) == [Commit(2)]


def test_a_death_or_silence_drops_it() -> None:
    house = House()
    house.want()
    house.go_on()
    house.reloader.died(1)
    assert house.go_on()[0] == Drop(1)
    house.want()
    house.go_on()
    house.reloader.heard(0, Staged(2))
    assert house.go_on(TIMEOUT_S - 1) == []
    assert house.go_on(1)[0] == Drop(2)
    reasons = [answer.reason for answer in house.answers if isinstance(answer, Outcome)]
    assert reasons == [
        "worker 1 died while it prepared the new configuration",
        "worker 1 did not answer within 30 s",
    ]


def test_what_is_wanted_meanwhile_is_one_more_reload() -> None:
    house = House()
    house.want()
    house.go_on()
    house.text = b"two"
    for _ in range(3):
        house.want("headrace reload")
    house.all_say(Staged, 1)
    house.reloader.heard(0, Committed(1))
    house.reloader.heard(1, Committed(1))
    outcome, stage = house.go_on()
    assert stage == Stage(2, b"two", PATH)
    assert house.answers == [outcome]
    house.applied(2)
    assert len(house.answers) == 4
    assert house.go_on() == []


def test_a_changed_file_is_a_reason() -> None:
    house = House()
    house.files[PATH] = 2
    assert house.reloader.due_at == 100 + INTERVAL_S
    assert house.go_on(INTERVAL_S) == []
    assert house.go_on(INTERVAL_S / 2) == []
    assert house.go_on(INTERVAL_S / 2) == [Stage(1, b"one", PATH)]
    house.applied(1)
    assert house.said == [f"reloaded ({PATH} changed), generation 2; changed: $.models"]
    assert house.go_on(INTERVAL_S) == house.go_on(INTERVAL_S) == []


def test_files_that_it_points_at_are_told_and_watched() -> None:
    house = House()
    house.files["/tls/cert.pem"] = 1
    house.want()
    house.go_on()
    house.applied(1)
    house.changed = ()
    house.files["/tls/cert.pem"] = 2
    house.go_on(INTERVAL_S)
    assert house.go_on(INTERVAL_S) == [Stage(2, b"one", PATH)]
    house.applied(2)
    assert house.reloader.last.changed == ("/tls/cert.pem",)
    house.want()
    house.go_on()
    house.applied(3)
    assert house.said[-1] == "reloaded (SIGHUP), generation 4; nothing changed"


def test_a_bad_file_is_tried_again_only_when_something_changes() -> None:
    """Also something that only the bad one points at: it may come a moment later."""
    house = House()
    house.files = {PATH: 2, "/tls/new.pem": 0}
    house.fault = ConfigError("$.listen.tls.certificate: there is no file /tls/new.pem")
    house.go_on(INTERVAL_S)
    house.go_on(INTERVAL_S)
    assert house.counted == ["refused"]
    for _ in range(5):
        house.go_on(INTERVAL_S)
    assert house.counted == ["refused"]
    house.files["/tls/new.pem"] = 1
    house.fault = None
    house.go_on(INTERVAL_S)
    assert house.go_on(INTERVAL_S) == [Stage(1, b"one", PATH)]


def test_watching_can_be_turned_off() -> None:
    house = House()
    house.watching = False
    house.files[PATH] = 2
    assert house.reloader.due_at == math.inf
    assert house.go_on(INTERVAL_S) == house.go_on(INTERVAL_S) == house.go_on(INTERVAL_S) == []
    house.want()
    assert house.go_on() == [Stage(1, b"one", PATH)]


def test_without_workers_later_ones_start_from_it() -> None:
    house = House(workers=0)
    house.want()
    house.go_on()
    assert house.reloader.last.generation == 2
    assert len(house.adopted) == 1


def test_at_the_end_nobody_waits_for_nothing() -> None:
    house = House()
    house.want("first")
    house.go_on()
    house.want("second")
    house.reloader.abandon("the gateway is stopping")
    assert house.answers == [Rejected("the gateway is stopping")] * 2
    assert not house.reloader.busy
    assert house.go_on() == []
