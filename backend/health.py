"""Which replicas get new requests: circuits fed by probes and by the exchanges themselves. Pure.

Rules, each learned from a system that broke them:
- a 4xx says nothing about the replica; only failures of its own count;
- failures in a row are one sign, a share of the latest exchanges is another: one that fails every
  second time never fails five times in a row;
- a refused connection proves that nobody listens: the circuit opens at once;
- an exchange that began before the circuit opened proves nothing by its success;
- slow answers to /health alone do not remove a replica whose streams flow: removing a busy
  replica makes its neighbours busy, and so on through the fleet;
- a replica that joins others gets nothing until it has answered a probe;
- what is only suspected (failed exchanges, slow probes) never removes more than a share of a
  model's replicas, nor the last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum

from backend.config import HealthConfig
from core.errors import GatewayError, UpstreamError, UpstreamReset
from core.replica import Replica

TRIAL_S = 1.0
"""How often a half-open replica is offered to one request."""
LATEST = 20
"""Of so many exchanges at most the share that failed is taken ..."""
LATEST_S = 10.0
"""... as far as they ended within so many seconds ..."""
ENOUGH = 10
"""... if there are so many."""


class Circuit(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Cause(Enum):
    """Why a circuit opened. The replica said so: `REFUSED` a connection, `UNHEALTHY` by bad
    answers to probes. It is `UNPROVEN` until it has answered. It is suspected: `FAILURES` in a
    row, the `RATIO` of failures, `SILENT` towards probes, a failed `TRIAL`."""

    REFUSED = "refused"
    UNHEALTHY = "unhealthy"
    UNPROVEN = "unproven"
    FAILURES = "failures"
    RATIO = "ratio"
    SILENT = "silent"
    TRIAL = "trial"


class Fault(Enum):
    """What a failed exchange says: `REFUSED` nobody listens, `FAILURE` it did not do its work."""

    REFUSED = "refused"
    FAILURE = "failure"


class Probe(Enum):
    """What an answer to `GET /health` says. `BAD`: answered, but not 2xx."""

    GOOD = "good"
    BAD = "bad"
    SLOW = "slow"
    REFUSED = "refused"


def classify(error: GatewayError, refused_reason: str) -> Fault | None:
    """What `error` says about the replica; None: nothing (a client's fault, a stale connection)."""
    if not isinstance(error, UpstreamError) or error.status < 500:
        return None
    if error.reason == refused_reason:
        return Fault.REFUSED
    if isinstance(error, UpstreamReset) and error.reused and not error.answered:
        return None  # it closed an idle connection just as we used it
    return Fault.FAILURE


class ReplicaHealth:
    """The circuit of one replica. All instants are monotonic seconds.

    `certain`: it is open because the replica said so (refused, bad health) or has said nothing
    yet, not by suspicion.
    `cause`: why it opened last. `seen`: it has answered at least once.
    """

    __slots__ = (
        "_backoff_s",
        "_bad_probes",
        "_config",
        "_failures",
        "_latest",
        "_open_until",
        "_succeeded_at",
        "_trial_at",
        "cause",
        "certain",
        "circuit",
        "opened_at",
        "replica",
        "seen",
    )

    def __init__(self, replica: Replica, config: HealthConfig) -> None:
        self.replica = replica
        self.circuit = Circuit.CLOSED
        self.certain = False
        self.cause = Cause.FAILURES
        self.seen = False
        self.opened_at = 0.0
        self._config = config
        self._failures = 0
        self._latest: deque[tuple[float, bool]] = deque(maxlen=LATEST)  # ended at, failed
        self._bad_probes = 0
        self._backoff_s = config.backoff_s
        self._open_until = 0.0
        self._trial_at = float("-inf")
        self._succeeded_at = float("-inf")

    def __repr__(self) -> str:
        return f"<ReplicaHealth {self.replica.id} {self.circuit.value}, {self._failures} failures>"

    def use(self, replica: Replica, config: HealthConfig) -> None:
        """The same server with these settings; its circuit stays as it is."""
        self.replica = replica
        self._config = config

    def await_proof(self, now: float) -> None:
        """It joins others, and nobody knows it: a good probe lets it in. Without one it is tried
        after the longest back-off, as its health may be asked for at the wrong path."""
        self.circuit = Circuit.OPEN
        self.cause = Cause.UNPROVEN
        self.certain = True
        self.opened_at = now
        self._backoff_s = self._config.backoff_s
        self._open_until = now + self._config.max_backoff_s

    def succeeded(self, now: float) -> None:
        """An exchange worked."""
        self._succeeded_at = now
        self.seen = True
        self._latest.append((now, False))
        if self.circuit is Circuit.CLOSED:
            self._failures = 0
        elif self.circuit is Circuit.HALF_OPEN or now >= self._open_until:
            self._close()

    def failed(self, fault: Fault, now: float) -> None:
        """An exchange failed."""
        self._failures += 1
        self._latest.append((now, True))
        if fault is Fault.REFUSED:
            self._open(now, Cause.REFUSED)
        elif self.circuit is Circuit.HALF_OPEN:
            self._open(now, Cause.TRIAL)
        elif self._failures >= self._config.failures:
            self._open(now, Cause.FAILURES)
        elif self._fails_often(now):
            self._open(now, Cause.RATIO)

    def probed(self, probe: Probe, now: float, flowing: bool) -> None:
        """A probe ended. `flowing`: bytes of its streams arrived since the probe before."""
        if probe is Probe.GOOD:
            self._good_probe(now)
        elif probe is Probe.REFUSED:
            self._open(now, Cause.REFUSED)
        elif probe is Probe.BAD or not (flowing or self._recently_succeeded(now)):
            self._bad_probes += 1
            if self._bad_probes >= self._config.unhealthy_after:
                self._open(now, Cause.UNHEALTHY if probe is Probe.BAD else Cause.SILENT)

    def due(self, now: float) -> float:
        """Seconds until the next probe is worth making: an open circuit is asked as it ends."""
        if self.circuit is Circuit.OPEN:
            return min(self._config.interval_s, max(0.05, self._open_until - now))
        return self._config.interval_s

    def admits(self, now: float) -> bool:
        """Whether a request may go there; a half-open replica is offered once in a while."""
        if self.circuit is Circuit.CLOSED:
            return True
        if self.circuit is Circuit.OPEN:
            if now < self._open_until:
                return False
            self.circuit = Circuit.HALF_OPEN
        if now - self._trial_at < TRIAL_S:
            return False
        self._trial_at = now
        return True

    def _good_probe(self, now: float) -> None:
        self.seen = True
        self._bad_probes = 0
        if self.circuit is Circuit.CLOSED:
            return
        if self.certain:
            self._close()  # what the probe said, the probe takes back
        elif now >= self._open_until:
            # Exchanges failed while /health was fine: only an exchange can prove it.
            self.circuit = Circuit.HALF_OPEN

    def _fails_often(self, now: float) -> bool:
        recent = [failed for ended_at, failed in self._latest if now - ended_at <= LATEST_S]
        return len(recent) >= ENOUGH and sum(recent) >= self._config.failure_ratio * len(recent)

    def _recently_succeeded(self, now: float) -> bool:
        return now - self._succeeded_at < 2 * self._config.interval_s

    def _open(self, now: float, cause: Cause) -> None:
        certain = cause in (Cause.REFUSED, Cause.UNHEALTHY)
        if self.circuit is Circuit.OPEN and now < self._open_until:
            self.certain = self.certain or certain
            return
        if self.circuit is Circuit.CLOSED:
            self._backoff_s = self._config.backoff_s
            self.opened_at = now
        else:
            self._backoff_s = min(2 * self._backoff_s, self._config.max_backoff_s)
        self.circuit = Circuit.OPEN
        self.cause = cause
        self.certain = certain
        self._open_until = now + self._backoff_s

    def _close(self) -> None:
        self.circuit = Circuit.CLOSED
        self.certain = False
        self._failures = 0
        self._latest.clear()
        self._bad_probes = 0
        self._trial_at = float("-inf")


class ModelHealth:
    """The replicas of one model, and which of them may be used."""

    def __init__(self, members: Iterable[ReplicaHealth], config: HealthConfig) -> None:
        self.members = tuple(members)
        self.everyone = tuple(member.replica for member in self.members)
        self._max_ejected = int(len(self.members) * config.max_ejected_ratio)
        self.troubled = False
        """Whether any circuit is not closed: kept by `review`, so that the usual case is free."""

    def __repr__(self) -> str:
        return f"<ModelHealth {list(self.members)}>"

    def review(self) -> None:
        """Call after any change of a member."""
        self.troubled = any(member.circuit is not Circuit.CLOSED for member in self.members)

    def candidates(self, now: float) -> Sequence[Replica]:
        """In configuration order. Empty only when every replica is certainly down."""
        if not self.troubled:
            return self.everyone
        ejected = {id(member) for member in self._ejected(now)}
        return [member.replica for member in self.members if id(member) not in ejected]

    def usable(self) -> bool:
        """Whether some replica is usable, without offering a trial to anybody."""
        return any(not member.certain for member in self.members)

    def answered(self) -> bool:
        """Whether some usable replica has ever answered."""
        return any(member.seen and not member.certain for member in self.members)

    def _ejected(self, now: float) -> list[ReplicaHealth]:
        """Those certainly down, then of the suspected ones the first opened, up to the cap."""
        down = [m for m in self.members if m.circuit is not Circuit.CLOSED and m.certain]
        suspected = [m for m in self.members if m.circuit is not Circuit.CLOSED and not m.certain]
        suspected.sort(key=_opened_at)
        room = min(self._max_ejected - len(down), len(self.members) - len(down) - 1)
        kept_out = suspected[: max(0, room)]
        return [member for member in down + kept_out if not member.admits(now)]


def _opened_at(member: ReplicaHealth) -> float:
    return member.opened_at
