"""The fake replica: vLLM's routes over one engine. Performs (listener, clock, log)."""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from types import TracebackType
from typing import Any

from loadtest.replica import dialect, faults
from loadtest.replica.answer import Answer
from loadtest.replica.apis import APIS, Api, Asked, Wording
from loadtest.replica.behaviour import Behaviour, parse_behaviour, requested
from loadtest.replica.connection import Connection, Request
from loadtest.replica.engine import Engine, Job, Overloaded
from loadtest.replica.kv_publisher import KvPublishers
from loadtest.replica.listener import Listener
from loadtest.replica.options import ReplicaOptions
from loadtest.replica.record import Record
from loadtest.replica.request import Refused, chosen_rank, parse_body, parse_generation
from loadtest.replica.routes import Operations, Route, answer_json
from loadtest.replica.stored import Stored
from loadtest.replica.tokens import Speech


@functools.cache
def _speech(tokenizer: Path, chat_template: Path) -> Speech:
    return Speech(tokenizer, chat_template)


class FakeReplica:
    """One vLLM-shaped server: `async with FakeReplica(token_ms=5) as replica: ... replica.url`.

    Keyword arguments are those of `ReplicaOptions`. `behaviour` may be set at any time and holds
    for requests that come later; one request overrides it with the header `x-fake` or the body
    field `"user": "fake:..."`. `requests` is what it saw, oldest first.
    """

    def __init__(
        self,
        options: ReplicaOptions | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        on_exit: Callable[[], None] | None = None,
        **changes: Any,
    ) -> None:
        self.options = replace(options or ReplicaOptions(), **changes)
        self._listener = Listener(host, port, tls)
        self.connections: set[Connection] = set()
        self.requests: deque[Record] = deque(maxlen=self.options.keep_log)
        self.engines: Sequence[Engine] = [
            Engine(self.options) for _ in range(self.options.data_parallel)
        ]
        self.engine = self.engines[0]
        self.kv = KvPublishers(self.options, self.engines, lambda: self._behaviour)
        self.keep_alive_s = self.options.keep_alive_s
        self._tls = tls
        self._on_exit = on_exit
        self._behaviour = parse_behaviour(self.options.behaviour)
        self.speech = _speech(self.options.tokenizer, self.options.chat_template)
        self._answers: dict[Job, Answer] = {}
        self._changed = asyncio.Event()
        self.stored = Stored(self, lambda: self._behaviour)
        self._numbers = itertools.count(1)
        self._date = (0, "")
        self._returns: asyncio.TimerHandle | None = None
        self._routes: dict[str, Route] = {
            **{api.path: ("POST", functools.partial(self._generate, api)) for api in APIS},
            **Operations(self, self.speech).routes(),
        }

    def __repr__(self) -> str:
        return f"<FakeReplica {self.url} {self.engine!r}>"

    # -- for tests and the command line ----------------------------------------------------------
    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self._listener.host}:{self.port}"

    @property
    def in_flight(self) -> int:
        """Generation requests that have not ended."""
        return len(self._answers)

    @property
    def behaviour(self) -> Behaviour:
        return self._behaviour

    @behaviour.setter
    def behaviour(self, text: str) -> None:
        self.behave(text)

    def behave(self, text: str) -> None:
        """Misbehave like this from now on ("" = behave); ValueError for unknown names."""
        self._behaviour = parse_behaviour(text)
        if "refuse" in self._behaviour and self._listener.is_open:
            self._refuse(self._behaviour["refuse"])

    async def __aenter__(self) -> FakeReplica:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Listen; OSError when the port is taken. With `refuse` nothing listens."""
        await self.start_listening()
        self.kv.start()
        if "refuse" in self._behaviour:
            self._refuse(self._behaviour["refuse"])

    async def close(self) -> None:
        """Stop listening and reset what is open."""
        if self._returns is not None:
            self._returns.cancel()
        self.kv.close()
        await self._listener.stopped()
        self.reset_connections()
        await self.wait_for(lambda: not self.connections)

    async def start_listening(self) -> None:
        """Accept connections (again), on the port it had."""
        await self._listener.start(lambda: Connection(self))

    def stop_listening(self) -> None:
        """Refuse new connections; open ones go on."""
        self._listener.stop()

    def reset_connections(self) -> None:
        for connection in list(self.connections):
            connection.reset()

    def die(self) -> None:
        """As if the process was killed: nothing listens, every connection is reset."""
        if self._on_exit is not None:
            self._on_exit()
        self.stop_listening()
        self.reset_connections()

    async def wait_for(self, condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
        """Wait until `condition` holds; it is asked whenever something changes. TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    # -- for connections and answers -------------------------------------------------------------
    def changed(self) -> None:
        self._changed.set()

    def handle(self, connection: Connection, request: Request) -> None:
        """Answer one request (called by the connection)."""
        path = request.path
        method, route = self._routes.get(path) or self.stored.route(path) or ("", None)
        if route is None:
            answer_json(self, connection, 404, {"detail": "Not Found"})
        elif request.method != method:
            answer_json(self, connection, 405, {"detail": "Method Not Allowed"})
        elif not self._authorized(request):
            answer_json(self, connection, 401, {"error": "Unauthorized"})
        else:
            route(connection, request)

    def head(self, status: int, content_type: bytes = b"", length: int | None = None) -> bytes:
        """A response head with the date of now; no length = chunked."""
        second = int(time.time())
        if self._date[0] != second:
            self._date = (second, formatdate(second, usegmt=True))
        return dialect.head(status, content_type, length, self._date[1])

    def ended(self, answer: Answer, outcome: str, reason: str) -> None:
        """An answer is over: close its record and let waiting jobs start."""
        now = time.monotonic()
        self._answers.pop(answer.job, None)
        answer.record.ended_at = now
        answer.record.outcome = outcome
        if outcome == "done":
            self.stored.add(answer.wording)
        for job in self.engines[answer.job.rank].finish(answer.job, reason, now):
            self._answers[job].start()
        self.changed()

    # -- routes ----------------------------------------------------------------------------------
    def _generate(self, api: Api, connection: Connection, request: Request) -> None:
        record = self._record(request)
        try:
            body = parse_body(request.body)
            if self.options.keep_bodies:
                record.body = body
            behaviour = self._requested(request, body)
            record.rank = chosen_rank(self.engines, request.headers.get("x-data-parallel-rank"))
            if "slow_head" in behaviour:
                self._wait_before_head(connection, record, api, body, behaviour)
            else:
                self._answer(connection, record, api, body, behaviour)
        except Refused as refused:
            self._refused(connection, record, refused)

    def _answer(
        self,
        connection: Connection,
        record: Record,
        api: Api,
        body: dict[str, Any],
        behaviour: Behaviour,
    ) -> None:
        if "status" in behaviour:
            code = int(behaviour["status"])
            raise Refused(code, api.refusal(dialect.error(code)))
        if faults.before_head(connection, behaviour, self.head(200, dialect.EVENT_STREAM)):
            record.ended_at, record.outcome = time.monotonic(), "faulted"
            self.changed()
            return
        options, speech = self.options, self.speech
        try:
            asked = parse_generation(api.translated(body), api.chat, options, speech, behaviour)
        except Refused as refused:
            raise Refused(refused.status, api.refusal(refused.body)) from refused
        record.model, record.stream = self.options.model, asked.stream
        record.prompt_tokens = len(asked.prompt_ids)
        output_ids = self.speech.answer_ids(asked.prompt_ids, asked.output_tokens)
        job = Job(asked.prompt_ids, output_ids, asked.salt, record.rank, fetched=asked.fetches)
        number, created = record.request_id, int(time.time())
        stamp = "stamp" in behaviour
        wording = api.wording(Asked(body, asked, options, speech, number, created, stamp))
        now = time.monotonic()
        try:
            runs = self.engines[job.rank].submit(job, now)
        except Overloaded:
            self._overloaded(connection, record, wording)
            return
        token_s = behaviour.get("token_ms", self.options.token_ms) / 1e3
        answer = Answer(
            self,
            connection,
            self.speech,
            job,
            wording,
            behaviour=behaviour,
            record=record,
            finish_reason=asked.finish_reason,
            token_s=token_s,
        )
        self._answers[job] = answer
        faults.arrange(answer)
        if asked.stream:
            answer.open_head()
        if runs:
            answer.start()
        self.changed()

    def _record(self, request: Request) -> Record:
        request_id = request.headers.get("x-request-id") or f"{next(self._numbers):016x}"
        record = Record(request_id, request.path, time.monotonic())
        if self.options.keep_bodies:
            record.headers = request.headers
        self.requests.append(record)
        return record

    def _requested(self, request: Request, body: dict[str, Any]) -> Behaviour:
        try:
            return requested(self._behaviour, request.headers.get("x-fake", ""), body.get("user"))
        except ValueError as error:
            raise Refused(400, dialect.error(400, str(error), param="user")) from error

    def _wait_before_head(
        self,
        connection: Connection,
        record: Record,
        api: Api,
        body: dict[str, Any],
        behaviour: Behaviour,
    ) -> None:
        def go_on() -> None:
            try:
                self._answer(connection, record, api, body, behaviour)
            except Refused as refused:
                self._refused(connection, record, refused)

        def gone() -> None:
            if timer is not None:
                timer.cancel()
            record.aborted_at = record.ended_at = time.monotonic()
            record.outcome = "aborted"

        seconds, timer = behaviour["slow_head"], None
        if math.isfinite(seconds):
            timer = asyncio.get_running_loop().call_later(seconds, go_on)
        connection.on_lost = gone
        self.changed()

    def _refused(self, connection: Connection, record: Record, refused: Refused) -> None:
        record.status, record.outcome = refused.status, "refused"
        record.ended_at = time.monotonic()
        body = refused.body
        if self.options.engine == "sglang" and list(body) == ["error"]:
            body = {"object": "error", **body["error"]}
        answer_json(self, connection, refused.status, body)

    def _overloaded(self, connection: Connection, record: Record, wording: Wording) -> None:
        """As captured: a stream gets 200 and an error event, the rest a plain 503."""
        if not record.stream:
            self._refused(connection, record, Refused(503, wording.error_body(503)))
            return
        record.status, record.outcome, record.ended_at = 200, "refused", time.monotonic()
        connection.write(self.head(200, dialect.EVENT_STREAM))
        for event in wording.failure(503):
            connection.write(dialect.chunk(event))
        connection.write(dialect.LAST_CHUNK)
        connection.finished()
        self.changed()

    def _authorized(self, request: Request) -> bool:
        """As in vLLM the key guards /v1 alone."""
        key = self.options.api_key
        given = request.headers.get("authorization")
        return key is None or not request.path.startswith("/v1") or given == f"Bearer {key}"

    def _refuse(self, seconds: float) -> None:
        self.stop_listening()
        if math.isfinite(seconds):
            loop = asyncio.get_running_loop()
            self._returns = loop.call_later(seconds, self._listen_again)

    def _listen_again(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self.start_listening())
