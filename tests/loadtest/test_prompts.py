"""What is asked: as many words as were drawn, alike where a prefix is shared, else not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadtest.prompts import Corpus, body, opening, question
from loadtest.scenario import Poisson, Prefix, Requests, Scenario
from loadtest.schedule import Session, draw_session

CORPUS = Corpus(1)


def session(number: int, **changes: object) -> Session:
    kind = Requests(name="a", prompt=12, output=34, **changes)  # type: ignore[arg-type]
    whole = Scenario(name="t", arrivals=Poisson(rate=1), requests=[kind], duration_s=1)
    return draw_session(whole, 5, number, 0.0)


@given(st.integers(0, 1 << 40), st.integers(1, 200_000))
def test_as_many_words_as_asked_for(place: int, count: int) -> None:
    assert len(CORPUS.words(place, count).split(" ")) == count


def test_after_the_last_word_comes_the_first() -> None:
    assert CORPUS.words(65_535, 3).split()[1:] == CORPUS.words(0, 2).split()


def test_a_group_shares_its_prefix() -> None:
    shared = {str(opening(session(n, prefix=Prefix(words=50)), CORPUS)) for n in range(20)}
    assert len(shared) == 1
    several = {
        str(opening(session(n, prefix=Prefix(words=50, groups=3)), CORPUS)) for n in range(40)
    }
    assert len(several) == 3
    assert opening(session(0), CORPUS) == []


def test_no_two_questions_are_alike() -> None:
    asked = {
        question(session(n, turns=2), turn, CORPUS)["content"] for n in (1, 2) for turn in (0, 1)
    }
    assert len(asked) == 4
    assert {len(text.split()) for text in asked} == {13}  # the mark that makes it its own, and 12


def test_the_request_asks_for_a_stream_with_usage() -> None:
    one = session(1, body={"temperature": 0})
    assert body(one, 0, [{"role": "user", "content": "x"}]) == {
        "model": "demo",
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 34,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
    }
