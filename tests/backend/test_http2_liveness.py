from __future__ import annotations

from backend.http2_liveness import Liveness, Verdict


def test_what_is_heard_needs_no_question() -> None:
    liveness = Liveness()
    assert [liveness.check(n, 10.0 * n, 5.0) for n in range(4)] == [Verdict.WELL] * 4


def test_silence_is_asked_about_once_and_then_counted_out() -> None:
    liveness = Liveness()
    verdicts = [liveness.check(7, float(now), 3.0).value for now in range(8)]
    assert verdicts == ["well", "well", "well", "ask", "doubted", "doubted", "dead", "dead"]


def test_after_a_pause_of_our_own_there_is_another_look() -> None:
    liveness = Liveness()
    verdicts = [liveness.check(7, now, 3.0).value for now in (0.0, 3.0, 60.0, 61.0)]
    assert verdicts == ["well", "ask", "doubted", "dead"]


def test_an_answer_ends_the_doubt() -> None:
    liveness = Liveness()
    for now in range(5):
        liveness.check(1, float(now), 3.0)
    assert liveness.check(2, 5.0, 3.0) is Verdict.WELL
    assert liveness.check(2, 7.9, 3.0) is Verdict.WELL
    assert liveness.check(2, 8.0, 3.0) is Verdict.ASK
    assert "asked" in repr(liveness)
