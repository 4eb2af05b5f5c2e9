"""The responses that a replica keeps: each can be asked for, and cancelled, by its id."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from loadtest.replica import dialect
from loadtest.replica.apis import Wording
from loadtest.replica.connection import Connection, Request
from loadtest.replica.responses import ResponseWording
from loadtest.replica.routes import Heads, Route, answer_json

_PATH = "/v1/responses/"
_MOST = 1000


class Stored:
    """By id, the newest thousand. `asked` are the paths that were asked for."""

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
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
        found = self._responses.get(number)
        if found is None:
            problem = dialect.error(404, f"Response with id '{number}' not found.", "NotFoundError")
            answer_json(self._heads, connection, 404, problem)
            return
        found.update(changes)
        answer_json(self._heads, connection, 200, found)
