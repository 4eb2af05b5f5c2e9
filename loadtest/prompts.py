"""What is sent: slices of one made-up text, so that a long prompt costs a copy. Decides."""

from __future__ import annotations

import itertools
import random
from typing import Any

from loadtest.schedule import Session

_TEXT = """
the a one each this that water river stone tree house road city ship cloud rain wind light night
morning evening week month year hour table window garden flower bird fish horse letter page story
question answer number price order account report meeting market bridge station harbour island
please read write find make keep bring carry open close turn wait move build break check count
small large short long high low fast slow early late new old warm cold clean dark quiet strong
and or but because when where which with from into over under between before after during again
"""
_WORDS = _TEXT.split()
_LENGTH = 1 << 16


class Corpus:
    """65,536 words; the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        words = random.Random(seed).choices(_WORDS, k=_LENGTH)
        self._text = " ".join(words) + " "
        ends = itertools.accumulate(len(word) + 1 for word in words)
        self._offsets = [0, *ends]

    def __repr__(self) -> str:
        return f"<Corpus {len(self._text)} bytes>"

    def words(self, place: int, count: int) -> str:
        """`count` words from the `place`th on; after the last comes the first again."""
        parts = []
        place %= _LENGTH
        while count > 0:
            taken = min(count, _LENGTH - place)
            parts.append(self._text[self._offsets[place] : self._offsets[place + taken]])
            count -= taken
            place = 0
        return "".join(parts).rstrip()


def opening(session: Session, corpus: Corpus) -> list[dict[str, Any]]:
    """What comes before the first turn: the system prompt of the session's group, if any."""
    prefix = session.kind.prefix
    if prefix is None:
        return []
    text = corpus.words(session.group * 7919, prefix.words)
    return [{"role": "system", "content": f"{session.kind.name} {session.group}: {text}"}]


def question(session: Session, turn: int, corpus: Corpus) -> dict[str, Any]:
    """The user's message of one turn; no two sessions begin alike, but for those that share
    blocks."""
    if session.blocks:
        return {"role": "user", "content": _of_blocks(session, corpus)}
    place = session.place + turn * 104_729
    text = corpus.words(place, session.turns[turn].prompt_words)
    return {"role": "user", "content": f"{session.place:x}.{turn} {text}"}


def _of_blocks(session: Session, corpus: Corpus) -> str:
    """Each block is a text of its own, the same wherever its id is. The last one may be cut; what
    the blocks leave of the prompt is its own."""
    each, left = session.block_words, session.turns[0].prompt_words
    parts = []
    for block in session.blocks:
        if left <= 0:
            break
        parts.append(f"{block:x} {corpus.words(block * 7919, min(each, left) - 1)}")
        left -= each
    if left > 0:
        parts.append(corpus.words(session.place, left))
    return " ".join(parts)


def body(session: Session, turn: int, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The request. Usage is asked for: its counts are the true ones."""
    return {
        "model": session.model,
        "messages": messages,
        "max_tokens": session.turns[turn].output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **session.kind.body,
    }
