from __future__ import annotations

from typing import Any, cast

from loadtest.replica.connection import Connection, Request
from loadtest.replica.dialect import Wording
from loadtest.replica.responses import ResponseWording
from loadtest.replica.stored import Stored


class Heads:
    def head(self, status: int, content_type: bytes = b"", length: int | None = None) -> bytes:
        return b"%d " % status

    def changed(self) -> None: ...


class Written:
    data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    def finished(self) -> None: ...


def ask(stored: Stored, method: str, path: str) -> bytes:
    route = stored.route(path)
    assert route is not None
    assert route[0] == method
    connection = Written()
    route[1](cast(Connection, connection), Request(method, path, {}, b""))
    return connection.data


def test_responses_are_kept_by_their_id() -> None:
    stored = Stored(cast(Any, Heads()), dict)
    wording = ResponseWording("resp_a", 1, "m", [7])
    stored.add(wording)
    assert ask(stored, "GET", "/v1/responses/resp_a").startswith(b"404")
    wording.document("text", [1], 0, "stop")
    stored.add(wording)
    assert b'"status":"completed"' in ask(stored, "GET", "/v1/responses/resp_a")
    assert b'"status":"cancelled"' in ask(stored, "POST", "/v1/responses/resp_a/cancel")
    assert stored.asked == ["/v1/responses/resp_a"] * 2 + ["/v1/responses/resp_a/cancel"]


def test_other_answers_and_paths_do_not_concern_it() -> None:
    stored = Stored(cast(Any, Heads()), dict)
    stored.add(Wording(True, "a", 1, "m", [7]))
    assert stored.route("/v1/responses") is None
    assert repr(stored) == "<Stored 0 responses>"
