"""The responses that a replica keeps: each can be asked for, and cancelled, by its id."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from loadtest.replica import dialect, faults
from loadtest.replica.apis import Wording
from loadtest.replica.behaviour import Behaviour
from loadtest.replica.connection import Connection, Request
from loadtest.replica.responses import ResponseWording
from loadtest.replica.routes import Heads, Route, answer_json

_PATH = "/v1/responses/"
_MOST = 1000


class Stored:
    """By id, the newest thousand. `asked` are the paths that were asked for, `left` counts those
    who left before they were answered."""

    def __init__(self, heads: Heads, behaviour: Callable[[], Behaviour]) -> None:
        self._heads = heads
        self._behaviour = behaviour
        self.left = 0
        self._responses: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self.asked: list[str] = []

    def __repr__(self) -> str:
        return f"<Stored {len(self._responses)} responses>"

    def add(self, wording: Wording) -> None:
        """What became of an answer, if it is one that is kept."""
        if isinstance(wording, ResponseWording) and wording.final is not None:
            self._responses[wording.response_id] = wording.final
            if len(self._responses) > _MOST:
                self._responses.popitem(last=False)

    def route(self, path: str) -> Route | None:
        if not path.startswith(_PATH):
            return None
        return ("POST", self._cancel) if path.endswith("/cancel") else ("GET", self._show)

    def _show(self, connection: Connection, request: Request) -> None:
        self._answer(connection, request, request.path.removeprefix(_PATH), {})

    def _cancel(self, connection: Connection, request: Request) -> None:
        number = request.path.removeprefix(_PATH).removesuffix("/cancel")
        self._answer(connection, request, number, {"status": "cancelled"})

    def _answer(
        self, connection: Connection, request: Request, number: str, changes: dict[str, Any]
    ) -> None:
        self.asked.append(request.path)
        behaviour = self._behaviour()
        if "status" in behaviour:
            code = int(behaviour["status"])
            answer_json(self._heads, connection, code, dialect.error(code))
            return
        if faults.before_head(connection, behaviour, self._heads.head(200, b"application/json")):
            return
        if "stall_first" in behaviour:
            connection.on_lost = self._left
            return
        found = self._responses.get(number)
        if found is None:
            problem = dialect.error(404, f"Response with id '{number}' not found.", "NotFoundError")
            answer_json(self._heads, connection, 404, problem)
            return
        found.update(changes)
        if "kill_mid" in behaviour or "truncate" in behaviour:
            body = dialect.compact(found).encode()
            head = self._heads.head(200, b"application/json", len(body))
            connection.write(head + body[: len(body) // 2])
            connection.reset() if "kill_mid" in behaviour else connection.close()
            return
        answer_json(self._heads, connection, 200, found)

    def _left(self) -> None:
        self.left += 1
        self._heads.changed()
