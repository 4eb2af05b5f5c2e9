from __future__ import annotations

from routing.ledger import Account


def sums(account: Account) -> tuple[int, int, int]:
    return account.pending_tokens, account.in_flight, account.live_tokens


def test_charged_moved_and_freed() -> None:
    account = Account()
    account.charge(100, 400)
    account.charge(7, 9)
    assert sums(account) == (107, 2, 409)
    assert account.prefilled(100)
    assert sums(account) == (7, 2, 409)
    assert account.free(0, 400)
    assert sums(account) == (7, 1, 9)
    assert account.free(7, 9)
    assert sums(account) == (0, 0, 0)


def test_underflow_is_told_and_leaves_nothing() -> None:
    account = Account()
    account.charge(10, 20)
    assert not account.prefilled(11)
    assert sums(account) == (0, 1, 20)
    assert not account.free(1, 19)
    assert sums(account) == (0, 0, 1)
    assert not account.free(0, 1)
    assert sums(account) == (0, 0, 0)
    account.charge(1, 1)
    assert not account.free(1, 2)
    assert sums(account) == (0, 0, 0)
