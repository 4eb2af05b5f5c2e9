"""What is known of one DNS query, and when to ask again. Pure.

- An answer counts for its TTL, within bounds (RFC 2181 section 8, RFC 2308 section 5 for those that
  there is nothing).
- A failure (no answer, SERVFAIL, nonsense) says nothing: the last answer stays.
- Nothing is believed when it was said `EMPTY_ENOUGH` times in a row, by somebody who may say so: a
  name server that is just being started says so, too. A headless service of Kubernetes names the
  pods that are ready, so a rollout or a failed probe of all of them looks like this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

EMPTY_ENOUGH = 3


class Answer(NamedTuple):
    """`hosts`: addresses, or `target:port` of SRV records; none: there is no such record.
    `authoritative`: a server of the zone said so, or one that cites the zone's SOA record."""

    hosts: tuple[str, ...]
    ttl_s: float
    authoritative: bool = True


class Lookup:
    """`hosts` is None until something is known. `trouble`: what is wrong now, in words. `due_s`:
    seconds until it is asked next."""

    def __init__(self, query: str, min_s: float, max_s: float) -> None:
        self.query = query
        self.hosts: tuple[str, ...] | None = None
        self.trouble = ""
        self.due_s = 0.0
        self._min_s = min_s
        self._max_s = max_s
        self._empty = 0
        self._failures = 0

    def __repr__(self) -> str:
        return f"<Lookup {self.query}: {self.hosts}, {self.trouble or 'well'}>"

    def answered(self, answer: Answer) -> None:
        self._failures = 0
        self.due_s = min(max(answer.ttl_s, self._min_s), self._max_s)
        if answer.hosts:
            self._empty, self.trouble = 0, ""
            self.hosts = ordered(answer.hosts)
        elif not answer.authoritative:
            self.trouble = f"{self.query}: no record, says a server that need not know"
        elif self.hosts == ():
            self.trouble = ""
        else:
            self._empty += 1
            # Many names have addresses of one kind alone.
            self.trouble = f"{self.query}: there is no record" if self.hosts else ""
            if self._empty >= EMPTY_ENOUGH:
                self.hosts, self.trouble = (), ""

    def failed(self, reason: str) -> None:
        """There was no answer. Asked again soon, then ever more seldom."""
        self.due_s = min(self._min_s * 2.0 ** min(self._failures, 10), self._max_s)
        self._failures += 1
        self.trouble = f"{self.query}: {reason}"


def ordered(hosts: Iterable[str]) -> tuple[str, ...]:
    """Servers turn their answers round; that is no change."""
    return tuple(sorted(set(hosts)))
