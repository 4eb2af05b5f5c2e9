from __future__ import annotations

import pytest

from core.shared_ledger import SharedLedger


def test_a_dead_workers_words_are_cleared_and_no_others() -> None:
    ledger = SharedLedger(3, 2)
    for place in range(2):
        words = ledger.place(place)
        for number in range(9):
            words[number] = 100 * place + number + 1
    ledger.clear(1)
    assert ledger.place(0).tolist() == [1, 0, 3, 4, 0, 6, 7, 0, 9]
    assert ledger.place(1).tolist() == [101, 0, 103, 104, 0, 106, 107, 0, 109]
    for outside in (-1, 2):
        with pytest.raises(IndexError):
            ledger.place(outside)
