"""The engine: begins each session at its due time, whatever became of those before. Performs."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from loadtest import prompts
from loadtest.http2_lanes import Http2Lanes
from loadtest.lanes import AnyLane, AnyLanes, Ask, ConnectError, Exchange, Lanes, Target
from loadtest.machine import waited_for_core_s
from loadtest.record import LEFT, OK, UNFINISHED, Opening, Record, Samples
from loadtest.scenario import Closed, Connections, Scenario
from loadtest.schedule import Session, draw, draw_session, plan

_LEAD_S = 0.1  # between building the schedule and its first instant

HeadersOf = Callable[[int], Mapping[str, str]]


class Talk:
    """A session under way."""

    def __init__(self, session: Session, messages: list[dict[str, Any]]) -> None:
        self.session = session
        self.messages = messages
        self.turn = 0

    def __repr__(self) -> str:
        return f"<Talk {self.session.number} turn={self.turn}/{len(self.session.turns)}>"

    @property
    def goes_on(self) -> bool:
        return self.turn + 1 < len(self.session.turns)


def make_lanes(
    target: Target, connections: Connections, opened: Callable[[Opening], None]
) -> AnyLanes:
    if connections.http2_streams:
        return Http2Lanes(target, connections.reuse, opened, connections.http2_streams)
    return Lanes(target, connections.reuse, opened)


class Runner:
    """One run. `headers_of` a session's number are sent beside those of the scenario. With
    `others` each request goes to `target` or one of them, drawn at random: its `arm`. `planned`
    takes the place of what the scenario would draw. `share`: of so many runners this one does
    every nth session, from the `first` on."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        target: Target,
        headers_of: HeadersOf,
        *,
        others: Sequence[Target] = (),
        planned: Sequence[Session] | None = None,
        first: int = 0,
        share: int = 1,
    ) -> None:
        self._scenario = scenario
        self._seed = seed
        self._targets = (target, *others)
        self._headers_of = headers_of
        self._corpus = prompts.Corpus(seed)
        drawn = plan(scenario, seed) if planned is None else list(planned)
        self._plan = drawn[first::share]
        self._first, self._share = first, share
        self._next = 0
        self._live: dict[Record, AnyLane | None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        how = scenario.connections
        self._lanes = [make_lanes(each, how, self._opened) for each in self._targets]
        self._over = asyncio.Event()
        self._stopped = False
        self._waiting = 0
        self.samples = Samples()

    def __repr__(self) -> str:
        return f"<Runner {self._scenario.name} begun={self._next} live={len(self._live)}>"

    @property
    def live(self) -> int:
        return len(self._live)

    @property
    def _end_at(self) -> float:
        return self.samples.began_at + self._scenario.total_s

    async def run(self, began_at: float | None = None) -> Samples:
        """Until every answer has ended or `stop` was called. `began_at`: an instant that is the
        same for all who share a run; by default soon."""
        samples, loop = self.samples, asyncio.get_running_loop()
        if began_at is None:
            began_at = time.perf_counter() + _LEAD_S
        samples.began_at = began_at
        samples.planned = [began_at + session.due_s for session in self._plan]
        cpu, waited = time.process_time(), waited_for_core_s()
        arrivals = self._scenario.arrivals
        if isinstance(arrivals, Closed):
            for _ in range(self._first, arrivals.users, self._share):
                self._later(began_at, self._next_of_user)
        loop.call_later(max(0.0, began_at - time.perf_counter()), self._tick)
        await self._over.wait()
        samples.cpu_s = time.process_time() - cpu
        samples.starved_s = waited_for_core_s() - waited
        samples.ended_at = time.perf_counter()
        await self._close()
        return samples

    def stop(self) -> None:
        """End now: what runs is counted as unfinished."""
        self._stopped = self.samples.interrupted = True
        self._over.set()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for record, lane in list(self._live.items()):
            self._finish(record, UNFINISHED)
            if lane is not None:
                lane.drop()
        for lanes in self._lanes:
            lanes.close()

    # -- what is due -----------------------------------------------------------------------------
    def _tick(self) -> None:
        """Begin all sessions that are due, and come again for the next."""
        if self._stopped:
            return
        planned, due = self._plan, self.samples.planned
        while self._next < len(planned) and due[self._next] <= time.perf_counter():
            number = self._next
            self._next += 1
            self._begin(planned[number], due[number])
        if self._next < len(planned):
            wait_s = max(0.0, due[self._next] - time.perf_counter())
            asyncio.get_running_loop().call_later(wait_s, self._tick)
        else:
            self._look_for_end()

    def _later(self, due_at: float, act: Callable[[float], None]) -> None:
        """Call `act(due_at)` at that instant, unless the run has ended by then."""
        if due_at >= self._end_at:
            return

        def now() -> None:
            self._waiting -= 1
            if not self._stopped:
                act(due_at)

        self._waiting += 1
        asyncio.get_running_loop().call_later(max(0.0, due_at - time.perf_counter()), now)

    def _next_of_user(self, due_at: float) -> None:
        """A user of a closed loop begins another session."""
        due_s = due_at - self.samples.began_at
        number = self._first + self._next * self._share
        session = draw_session(self._scenario, self._seed, number, due_s)
        self._next += 1
        self._begin(session, due_at)

    def _begin(self, session: Session, due_at: float) -> None:
        self._ask(Talk(session, prompts.opening(session, self._corpus)), due_at)

    # -- one request -----------------------------------------------------------------------------
    def _ask(self, talk: Talk, due_at: float) -> None:
        session, turn = talk.session, talk.turn
        record = Record(session.number, turn, session.kind.name, due_at)
        record.started_at = time.perf_counter()
        record.slow = session.pause_s > 0
        if len(self._targets) > 1:
            rng = random.Random(f"{self._seed}/{session.number}/{turn}/arm")
            record.arm = rng.randrange(len(self._targets))
        self.samples.records.append(record)
        talk.messages.append(prompts.question(session, turn, self._corpus))
        request = self._request(talk)
        lane = self._lanes[record.arm].take()
        if lane is None:
            self._connect(talk, record, request)
        else:
            self._send(lane, talk, record, request)

    def _request(self, talk: Talk) -> Ask:
        body = msgspec.json.encode(prompts.body(talk.session, talk.turn, talk.messages))
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            **self._scenario.headers,
            **self._headers_of(talk.session.number),
        }
        return Ask(headers, body)

    def _connect(self, talk: Talk, record: Record, request: Ask) -> None:
        self._live[record] = None
        task = asyncio.get_running_loop().create_task(self._connected(talk, record, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connected(self, talk: Talk, record: Record, request: Ask) -> None:
        try:
            async with asyncio.timeout(self._scenario.timeout_s):
                lane = await self._lanes[record.arm].connect()
        except ConnectError as error:
            self._failed(record, error.problem, str(error))
        except TimeoutError:
            self._failed(record, "connect", "no connection in time")
        else:
            self._send(lane, talk, record, request)

    def _send(self, lane: AnyLane, talk: Talk, record: Record, request: Ask) -> None:
        session = talk.session
        was_used = lane.used

        def ended(exchange: Exchange) -> None:
            timer.cancel()
            if was_used and exchange.untouched and exchange.reader.problem == "reset":
                # The server had closed this kept connection just then: as every client does, once.
                self.samples.reconnects += 1
                self._lanes[record.arm].give_back(lane)
                self._connect(talk, record, request)
            else:
                self._lanes[record.arm].give_back(lane)
                self._ended(talk, record, exchange)

        def too_late() -> None:
            exchange.reader.problem = "timeout"
            exchange.untouched = False
            lane.leave()

        exchange = Exchange(
            ended,
            keep_text=talk.goes_on,
            leave_after=session.turns[talk.turn].leave_after,
            pause_s=session.pause_s,
        )
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._scenario.timeout_s, too_late)
        self._live[record] = lane
        lane.ask(request, exchange)
        record.sent_at = exchange.sent_at

    def _ended(self, talk: Talk, record: Record, exchange: Exchange) -> None:
        reader = exchange.reader
        record.status = reader.status
        record.first_at, record.last_at = reader.first_at, reader.last_at
        record.pieces, record.gap_max = reader.pieces, max(reader.gaps, default=0.0)
        record.prompt_tokens, record.cached_tokens = reader.prompt_tokens, reader.cached_tokens
        record.output_tokens = reader.output_tokens or reader.pieces
        record.timing = reader.timing
        if reader.problem:
            self._failed(record, reader.problem, reader.detail)
            return
        if not exchange.left and not record.slow:
            self.samples.add_gaps(record.due_at, reader.gaps)
        self._finish(record, LEFT if exchange.left else OK)
        if talk.goes_on and not exchange.left:
            talk.messages.append({"role": "assistant", "content": reader.text})
            talk.turn += 1
            think_s = talk.session.turns[talk.turn].think_s
            self._later(record.ended_at + think_s, lambda due_at: self._ask(talk, due_at))
        else:
            self._over_with(record)
        self._look_for_end()

    def _failed(self, record: Record, problem: str, detail: str) -> None:
        record.detail = detail
        self._finish(record, problem)
        self._over_with(record)
        self._look_for_end()

    def _finish(self, record: Record, outcome: str) -> None:
        record.ended_at = time.perf_counter()
        record.outcome = outcome
        self._live.pop(record, None)

    def _over_with(self, record: Record) -> None:
        """A session has ended: its user, in a closed loop, thinks and begins another."""
        arrivals = self._scenario.arrivals
        if isinstance(arrivals, Closed) and not self._stopped:
            # By the number, so that the next session is the same in every run.
            think_s = draw(arrivals.think_s, random.Random(f"{self._seed}/{record.session}/think"))
            self._later(record.ended_at + think_s, self._next_of_user)

    def _look_for_end(self) -> None:
        if not self._live and not self._waiting and self._next >= len(self._plan):
            self._over.set()

    def _opened(self, opening: Opening) -> None:
        self.samples.openings.append(opening)
