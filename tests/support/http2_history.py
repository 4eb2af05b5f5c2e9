"""An HTTP/2 client that says anything, and a handler that answers anyhow, by the roll of dice."""

from __future__ import annotations

import random
from collections.abc import Callable

from http2_edge import Http2Edge
from http2_frames import GET, POST, data, ping, reset, settings, window_update

from core.http2 import frames
from core.http2.engines import EngineName
from core.http2.frames import frame
from proxy.config import ListenLimits
from proxy.http2.exchange import Http2Exchange

HEADS = [
    GET,
    POST,
    [*POST, (b"content-length", b"5")],
    [*GET, (b"content-length", b"5")],
    [*GET, (b"te", b"gzip")],
    [*POST, (b"expect", b"100-continue")],
    [(b":method", b"HEAD"), *GET[1:]],
    [(b":method", b"CONNECT"), (b":authority", b"a")],
    [(b"a", b"b")],
]
LARGE = 2**31 - 1


class History:
    """Of one connection, which is lost in the end. `dice` decide what happens."""

    def __init__(self, engine: EngineName, dice: random.Random) -> None:
        self.dice = dice
        limits = ListenLimits(max_streams=dice.choice([2, 100]), max_body_bytes=20_000)
        window = settings(_4=dice.choice([0, 10, 65_535]))
        self.edge = Http2Edge(engine, limits=limits, client_settings=window)
        self.next = 1

    def __repr__(self) -> str:
        return f"<History {self.edge.connection!r}>"

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self.edge.transport.over:
                break
            self.dice.choice([self.say, self.say, self.say, self.answer, self.disturb])()
        self.edge.lose()

    def say(self) -> None:
        said = b"".join(self.frame() for _ in range(self.dice.randrange(1, 4)))
        cut = self.dice.choice([len(said), self.dice.randrange(len(said) + 1)])
        self.edge.send(*filter(None, (said[:cut], said[cut:])))

    def frame(self) -> bytes:
        dice = self.dice
        stream = dice.choice([1, 3, 5, max(1, self.next - 2)])
        noise: bytes = frame(dice.randrange(20), dice.randrange(256), stream, dice.randbytes(9))
        said: list[Callable[[], bytes]] = [
            self.head,
            self.head,
            self.head,
            lambda: data(stream, bytes(dice.choice([0, 5, 16_384])), end=dice.random() < 0.3),
            lambda: data(stream, b"hello", end=dice.random() < 0.5),
            lambda: frame(frames.DATA, 0x8, stream, b"\x03ab\0\0\0"),
            lambda: reset(stream),
            lambda: window_update(dice.choice([0, stream]), dice.choice([0, 1, 70_000, LARGE])),
            lambda: settings(_4=dice.choice([0, 1, 70_000, LARGE])),
            lambda: settings(_1=0, _3=dice.choice([0, 1]), _5=dice.choice([5, 16_384])),
            lambda: ping(ack=dice.random() < 0.5),
            lambda: frame(frames.GOAWAY, 0, 0, bytes(8)),
            lambda: noise,
            lambda: noise[:7],
        ]
        return dice.choice(said)()

    def head(self) -> bytes:
        stream = self.dice.choice([self.next, self.next, self.next, 1, 2, LARGE])
        self.next += 2
        fields, more = self.dice.choice(HEADS), self.dice.random() < 0.05
        return self.edge.client.head(stream, fields, end=self.dice.random() < 0.5, more=more)

    def answer(self) -> None:
        running = [one for one in self.edge.exchanges if not one.gone]
        if running:
            self.go_on(self.dice.choice(running))
            self.edge.turn()

    def go_on(self, exchange: Http2Exchange) -> None:
        if not exchange.started:
            exchange.start(self.dice.choice([200, 204, 500]), [], self.dice.choice([None, 5]))
            return
        steps: list[Callable[[], None]] = [
            lambda: exchange.write(bytes(self.dice.choice([0, 1, 70_000]))),
            lambda: exchange.finish(self.dice.choice([b"", b"end"])),
            exchange.abort,
        ]
        self.dice.choice(steps)()

    def disturb(self) -> None:
        connection = self.edge.connection
        if connection.writing_paused:
            connection.resume_writing()
            self.edge.turn()
        else:
            wait_s = self.dice.choice([0.5, 5.0, 40.0])
            calls: list[Callable[[], object]] = [
                connection.pause_writing,
                connection.shut_idle,
                lambda: self.edge.wait(wait_s),
            ]
            self.dice.choice(calls)()
