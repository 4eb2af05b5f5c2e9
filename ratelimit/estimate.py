"""What is learned from the answers of a model: how long they are, and tokens per event. Pure.

An event of a stream holds one token, or several where a model speculates, and a few hold none, such
as one that only says why the answer ended. So a stream that ends without the replica's usage is
counted by its events, times what streams with usage have shown for the model: the slope of tokens
over events, which what each answer has once does not bend; or, while all answers are about as long,
simply their ratio.
"""

from __future__ import annotations

from typing import Final

MEMORY: Final = 64.0
"""About so many answers are remembered."""
_FADE: Final = 1.0 - 1.0 / MEMORY
_SPREAD: Final = 0.05
"""The least variance of the number of events, by its square, for a slope to be believed."""
_BEND: Final = 2.0
"""And how far it may be from the ratio."""


class _Seen:
    """Sums over the answers of one model, of which older ones weigh less. `streams` and what
    follows are of those that were streamed."""

    __slots__ = (
        "answers",
        "event_tokens",
        "events",
        "products",
        "squares",
        "streams",
        "tokens",
    )

    def __init__(self) -> None:
        self.answers = self.tokens = 0.0
        self.streams = self.events = self.event_tokens = self.squares = self.products = 0.0

    def __repr__(self) -> str:
        return f"<_Seen {self.tokens:.0f} tokens in {self.answers:.1f} answers>"

    def tokens_per_event(self) -> float:
        if not self.events:
            return 1.0
        ratio = self.event_tokens / self.events
        spread = self.squares * self.streams - self.events**2
        if spread < _SPREAD * self.events**2:
            return ratio
        slope = (self.products * self.streams - self.events * self.event_tokens) / spread
        return slope if ratio / _BEND <= slope <= ratio * _BEND else ratio


class Estimates:
    """By model. `first_output`: tokens an answer is taken to have before one was seen; `most`: the
    highest estimate; `previous`: what was learned so far."""

    def __init__(self, first_output: int, most: int, previous: Estimates | None = None) -> None:
        self._first = first_output
        self._most = most
        self._seen: dict[str, _Seen] = {} if previous is None else previous._seen

    def __repr__(self) -> str:
        return f"<Estimates of {list(self._seen)}>"

    def learn(self, model: str, events: int, tokens: int) -> None:
        """An answer's usage is known. `events`: those that may hold content, 0 when it was not
        streamed. Sets of models are small: they are the configuration's."""
        seen = self._seen.get(model)
        if seen is None:
            seen = self._seen[model] = _Seen()
        seen.answers = seen.answers * _FADE + 1.0
        seen.tokens = seen.tokens * _FADE + tokens
        if events > 0:
            seen.streams = seen.streams * _FADE + 1.0
            seen.events = seen.events * _FADE + events
            seen.event_tokens = seen.event_tokens * _FADE + tokens
            seen.squares = seen.squares * _FADE + events * events
            seen.products = seen.products * _FADE + events * tokens

    def output(self, model: str, allowed: int | None) -> int:
        """How many tokens an answer will have, at most `allowed`."""
        seen = self._seen.get(model)
        expected = self._first if seen is None else int(seen.tokens / seen.answers) + 1
        expected = min(expected, self._most)
        return expected if allowed is None else min(expected, allowed)

    def tokens(self, model: str, events: int) -> int:
        """How many tokens so many events hold."""
        seen = self._seen.get(model)
        return events if seen is None else round(events * seen.tokens_per_event())
