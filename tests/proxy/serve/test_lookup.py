from __future__ import annotations

import pytest

from proxy.serve.lookup import EMPTY_ENOUGH, Answer, Lookup

NOTHING = Answer((), 30)


def lookup() -> Lookup:
    return Lookup("A vllm.internal", 5, 60)


@pytest.mark.parametrize(("ttl_s", "due_s"), [(0, 5), (5, 5), (30, 30), (86_400, 60)])
def test_an_answer_counts_for_its_ttl_within_bounds(ttl_s: float, due_s: float) -> None:
    known = lookup()
    known.answered(Answer(("10.0.0.1",), ttl_s))
    assert (known.hosts, known.due_s, known.trouble) == (("10.0.0.1",), due_s, "")


def test_the_order_of_an_answer_is_nothing() -> None:
    known = lookup()
    for hosts in (("b", "a"), ("a", "b"), ("a", "b", "a")):
        known.answered(Answer(hosts, 5))
        assert known.hosts == ("a", "b")


def test_a_failure_keeps_the_last_answer_and_is_said() -> None:
    known = lookup()
    known.answered(Answer(("10.0.0.1",), 30))
    waits = []
    for _ in range(6):
        known.failed("timed out")
        waits.append(known.due_s)
    assert known.hosts == ("10.0.0.1",)
    assert known.trouble == "A vllm.internal: timed out"
    assert waits == [5, 10, 20, 40, 60, 60]
    known.answered(Answer(("10.0.0.2",), 30))
    assert (known.hosts, known.trouble) == (("10.0.0.2",), "")
    known.failed("timed out")
    assert known.due_s == 5


def test_a_fleet_is_emptied_by_repetition_alone() -> None:
    known = lookup()
    known.answered(Answer(("10.0.0.1",), 30))
    for _ in range(EMPTY_ENOUGH - 1):
        known.answered(NOTHING)
        assert known.hosts == ("10.0.0.1",)
        assert "there is no record" in known.trouble
    known.answered(Answer(("10.0.0.1",), 30))  # a row, not a sum
    for _ in range(EMPTY_ENOUGH):
        assert known.hosts == ("10.0.0.1",)
        known.failed("timed out")
        known.answered(NOTHING)
    assert (known.hosts, known.trouble) == ((), "")
    known.answered(NOTHING)
    assert (known.hosts, known.trouble) == ((), "")


def test_nobody_but_the_zone_can_say_that_there_is_nothing() -> None:
    known = lookup()
    known.answered(Answer(("10.0.0.1",), 30))
    for _ in range(3 * EMPTY_ENOUGH):
        known.answered(Answer((), 0, authoritative=False))
    assert known.hosts == ("10.0.0.1",)
    assert "need not know" in known.trouble


def test_nothing_is_not_believed_at_once_by_one_that_has_just_begun() -> None:
    known = lookup()
    known.answered(NOTHING)
    assert (known.hosts, known.trouble) == (None, ""), "many names have one kind of address alone"
