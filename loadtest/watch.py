"""What the processes of a server use while it is loaded: from /proc and its metrics. Performs.

A thread of its own looks, so that a slow `/metrics` holds up no request. The processes are those
that run when it begins: the given ones and their descendants.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from loadtest.record import Seen
from loadtest.server_side import COUNTERS

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TIMEOUT_S = 5.0


class Watch:
    """Looks every `every_s`, from `begin` to its end as a context. `gauges`: names of metrics; what
    each is with its labels is added up. `replicas`: their URLs."""

    def __init__(
        self,
        pids: Sequence[int],
        metrics_url: str | None = None,
        gauges: Sequence[str] = (),
        *,
        replicas: Sequence[str] = (),
        every_s: float = 1.0,
    ) -> None:
        """ProcessLookupError, OverflowError: one does not run."""
        for pid in pids:
            os.kill(pid, 0)
        self._pids = list(dict.fromkeys(each for pid in pids for each in family(pid)))
        self._metrics_url = metrics_url
        self._gauges = gauges
        self._every_s = every_s
        self._replicas = replicas
        self._before: dict[str, dict[str, float]] = {}
        self._seen: dict[tuple[str, str], Seen] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self.notes: list[str] = []

    def __repr__(self) -> str:
        return f"<Watch of {self._pids}>"

    def __enter__(self) -> Watch:
        return self

    def begin(self) -> None:
        self._before = self._counters()
        if self._pids or self._metrics_url is not None:
            self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def seen(self) -> list[Seen]:
        return list(self._seen.values())

    def counters(self) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
        """Those of each replica, at the begin and now."""
        return self._before, self._counters()

    def _counters(self) -> dict[str, dict[str, float]]:
        found = {}
        for url in self._replicas:
            text = self._page(f"{url.rstrip('/')}/metrics")
            if text is not None:
                found[url] = sums(text, list(COUNTERS.values()))
        return found

    def _page(self, url: str) -> str | None:
        """None, and a note: there was none."""
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
                text: str = answer.read().decode()
                return text
        except (OSError, ValueError) as error:
            self._once(f"{url}: {error}")
            return None

    def _look_on(self) -> None:
        while True:
            self.look(time.perf_counter())
            if self._over.wait(self._every_s):
                break
        self.look(time.perf_counter())  # whatever was used until the end

    def look(self, now: float) -> None:
        for pid in list(self._pids):
            try:
                self._note(now, f"process {pid}", _of_process(pid))
            except OSError:
                self._pids.remove(pid)
                self.notes.append(f"process {pid} ended")
        if self._metrics_url is not None and self._gauges:
            text = self._page(self._metrics_url)
            if text is None:
                return
            found = sums(text, self._gauges)
            self._note(now, "metrics", [(name, "", value) for name, value in found.items()])
            for name in self._gauges:
                if name not in found:
                    self._once(f"{self._metrics_url} has no {name}")

    def _note(self, now: float, of: str, values: Iterable[tuple[str, str, float]]) -> None:
        for what, unit, value in values:
            seen = self._seen.get((of, what))
            if seen is None:
                seen = self._seen[of, what] = Seen(of, what, unit)
            seen.at.append(now)
            seen.values.append(value)

    def _once(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, ())
    return found


def _of_process(pid: int) -> Iterator[tuple[str, str, float]]:
    """OSError once it has ended."""
    folder = Path(f"/proc/{pid}")
    resident = int((folder / "statm").read_bytes().split()[1])
    if not resident:
        raise ProcessLookupError(pid)  # a zombie has no memory
    yield "rss", "bytes", resident * _PAGE_BYTES
    yield "descriptors", "", len(os.listdir(folder / "fd"))
    yield "threads", "", len(os.listdir(folder / "task"))
    # Its CPU clock, finer than the ticks in /proc: clock_getcpuclockid(3).
    yield "cpu", "s", time.clock_gettime(~pid << 3 | 2)


def sums(text: str, names: Sequence[str]) -> dict[str, float]:
    """Of these metrics in Prometheus' text format, each added up over its labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in names:
            value = line.rpartition("}")[2].split() if "}" in line else line.split()[1:]
            with contextlib.suppress(ValueError, IndexError):
                found[name] = found.get(name, 0.0) + float(value[0])
    return found
