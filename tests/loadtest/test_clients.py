"""What several clients have measured is put together as one would have measured it."""

from __future__ import annotations

from load_samples import record, samples

from loadtest.clients import merged


def test_samples_are_put_together_and_the_busiest_client_counts() -> None:
    one = samples([record(0, 1), record(2, 3)], cpu_s=2.0, starved_s=0.1)
    two = samples([record(1, 2), record(3, 4)], cpu_s=1.0, starved_s=3.0, ended_at=1020.0)
    two.add_gaps(1002.0, [0.5])
    two.reconnects, two.interrupted = 2, True
    whole = merged([one, two])
    assert [each.session for each in whole.records] == [0, 1, 2, 3]
    assert whole.planned == [1001.0, 1002.0, 1003.0, 1004.0]
    assert (whole.cpu_s, whole.starved_s) == (1.0, 3.0)
    assert (whole.ended_at, whole.reconnects, whole.interrupted) == (1020.0, 2, True)
    assert list(whole.gaps) == [0.5]
