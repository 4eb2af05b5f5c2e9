"""Asks an OpenAI-compatible endpoint, one request after another, and takes the times."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import SplitResult

from proxy.serve.profile.report import FIRST_TOKENS, Sample, parse_server_timing


class CannotProfile(Exception):
    """The endpoint does not answer as it should, in words."""


@dataclass(frozen=True, slots=True)
class Question:
    """`url`: the whole one of a chat completion. `tls`: None for plain HTTP."""

    url: SplitResult
    headers: Mapping[str, str]
    body: bytes
    tls: ssl.SSLContext | None
    timeout_s: float

    @property
    def port(self) -> int:
        return self.url.port or (443 if self.tls is not None else 80)


class Profiler:
    """Every second request is the first of its connection; TLS sessions are resumed where the
    server gives tickets."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._session: ssl.SSLSession | None = None

    def samples(self, count: int) -> Iterator[Sample]:
        """Raises CannotProfile."""
        connection: http.client.HTTPConnection | None = None
        try:
            for number in range(count):
                sample = Sample()
                if connection is None or number % 2 == 0:
                    if connection is not None:
                        connection.close()
                    connection = self._connect(sample)
                self._ask(connection, sample)
                yield sample
        except (OSError, http.client.HTTPException) as error:
            words = str(error) or type(error).__name__
            raise CannotProfile(f"{self._question.url.geturl()}: {words}") from error
        finally:
            if connection is not None:
                connection.close()

    def _connect(self, sample: Sample) -> http.client.HTTPConnection:
        question = self._question
        host = question.url.hostname or ""
        begun = time.perf_counter()
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, question.port, type=socket.SOCK_STREAM
        )[0]
        resolved = time.perf_counter()
        connection = http.client.HTTPConnection(host, question.port)
        connection.sock = sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(question.timeout_s)
            sock.connect(address)
            connected = time.perf_counter()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sample.resolve, sample.connect = resolved - begun, connected - resolved
            if question.tls is not None:
                secure = question.tls.wrap_socket(sock, server_hostname=host, session=self._session)
                sample.tls = time.perf_counter() - connected
                sample.resumed = bool(secure.session_reused)
                connection.sock = secure
        except OSError:
            connection.close()
            raise
        return connection

    def _ask(self, connection: http.client.HTTPConnection, sample: Sample) -> None:
        question = self._question
        path = question.url.path + (f"?{question.url.query}" if question.url.query else "")
        begun = time.perf_counter()
        connection.request("POST", path, body=question.body, headers=dict(question.headers))
        sample.upload = time.perf_counter() - begun
        answer = connection.getresponse()
        sample.first_byte = time.perf_counter() - begun
        if answer.status != 200:
            words = answer.read(2000).decode("utf-8", "replace")
            raise CannotProfile(f"the answer is {answer.status}: {words}")
        sample.server = parse_server_timing(answer.headers.get("Server-Timing", ""))
        self._read(answer, sample, begun)
        sock = connection.sock
        if isinstance(sock, ssl.SSLSocket):  # tickets come after the handshake
            self._session = sock.session

    def _read(self, answer: http.client.HTTPResponse, sample: Sample, begun: float) -> None:
        arrived: list[float] = []
        while line := answer.readline():
            if line.startswith(b"data: {"):
                event = _event(line)
                if "error" in event:
                    raise CannotProfile(f"the stream failed: {event['error']}")
                if _has_content(event):
                    arrived.append(time.perf_counter() - begun)
        sample.total = time.perf_counter() - begun
        if not arrived:
            raise CannotProfile("the answer is no stream with content (is it a chat model?)")
        sample.first_token = arrived[0]
        sample.first_tokens = arrived[min(FIRST_TOKENS, len(arrived)) - 1]
        sample.gaps = [after - before for before, after in pairwise(arrived)]


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line[6:])
    except ValueError:
        raise CannotProfile("the stream has an event that is no JSON") from None
    return event if isinstance(event, dict) else {}


def _has_content(event: Mapping[str, Any]) -> bool:
    """The first event of a chat names the role only, the last one the usage."""
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning"):
            return True
    return False
