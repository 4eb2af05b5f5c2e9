"""What is learned from the answers of a model: how long they are, and tokens per event. Pure.

An event of a stream holds one token, or several where a model speculates, and some hold none. So a
stream that ends without the replica's usage is counted by its events, times what streams with usage
have shown for the model.
"""

from __future__ import annotations

from typing import Final

MEMORY: Final = 64.0
"""About so many answers are remembered."""
_FADE: Final = 1.0 - 1.0 / MEMORY


class _Seen:
    """Sums over the answers of one model, of which older ones weigh less."""

    __slots__ = ("answers", "event_tokens", "events", "tokens")

    def __init__(self) -> None:
        self.answers = 0.0
        self.tokens = 0.0
        self.events = 0.0
        self.event_tokens = 0.0

    def __repr__(self) -> str:
        return f"<_Seen {self.tokens:.0f} tokens in {self.answers:.1f} answers>"


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
        """An answer was complete and its usage known. `events`: those that may hold content, 0 when
        it was not streamed. Sets of models are small: they are the configuration's."""
        seen = self._seen.get(model)
        if seen is None:
            seen = self._seen[model] = _Seen()
        seen.answers = seen.answers * _FADE + 1.0
        seen.tokens = seen.tokens * _FADE + tokens
        if events > 0:
            seen.events = seen.events * _FADE + events
            seen.event_tokens = seen.event_tokens * _FADE + tokens

    def output(self, model: str, allowed: int | None) -> int:
        """How many tokens an answer will have, at most `allowed`."""
        seen = self._seen.get(model)
        expected = self._first if seen is None else int(seen.tokens / seen.answers) + 1
        expected = min(expected, self._most)
        return expected if allowed is None else min(expected, allowed)

    def tokens(self, model: str, events: int) -> int:
        """How many tokens so many events hold."""
        seen = self._seen.get(model)
        if seen is None or not seen.events:
            return events
        return round(events * seen.event_tokens / seen.events)
