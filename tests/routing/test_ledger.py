from __future__ import annotations

from core.shared_ledger import SharedLedger
from routing.ledger import Account, Ledger, WorkerLedger


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


def workers_of(memory: SharedLedger, places: dict[str, int]) -> list[WorkerLedger]:
    return [WorkerLedger(memory, number, places) for number in range(memory.workers)]


def test_workers_see_what_the_others_gave() -> None:
    one, two = (ledger.account("b") for ledger in workers_of(SharedLedger(2, 3), {"a": 0, "b": 2}))
    one.charge(100, 400)
    two.charge(7, 9)
    assert sums(two) == (7, 1, 9)
    for account in (one, two):
        account.read()
        assert sums(account) == (107, 2, 409)
    assert sums(two.own) == (7, 1, 9)
    assert one.prefilled(100)
    assert one.free(0, 400)
    two.read()
    assert sums(two) == (7, 1, 9)
    assert sums(one.own) == (0, 0, 0)


def test_of_a_dead_worker_nothing_is_left_and_its_successor_begins_at_nothing() -> None:
    memory = SharedLedger(2, 1)
    one, two = (ledger.account("a") for ledger in workers_of(memory, {"a": 0}))
    one.charge(1, 2)
    two.charge(10, 20)
    memory.clear(0)
    two.read()
    assert sums(two) == (10, 1, 20)
    again = workers_of(memory, {"a": 0})[0].account("a")
    assert sums(again) == (10, 1, 20)
    assert sums(again.own) == (0, 0, 0)


def test_underflow_of_one_worker_takes_nothing_from_the_others() -> None:
    one, two = (ledger.account("a") for ledger in workers_of(SharedLedger(2, 1), {"a": 0}))
    one.charge(10, 20)
    two.charge(1, 1)
    assert not two.free(5, 9)
    one.read()
    assert sums(one) == (10, 1, 20)


def test_whose_place_is_taken_counts_for_nobody_else() -> None:
    first, second = workers_of(SharedLedger(2, 1), {"a": 0})
    old, other = first.account("a"), second.account("a")
    old.charge(10, 20)
    other.charge(1, 2)
    first.use({"b": 0})
    new = first.account("b")
    assert sums(new) == (1, 1, 2)
    assert sums(old) == (10, 1, 20)
    assert old.free(10, 20)
    new.read()
    assert sums(new) == (1, 1, 2)
    assert sums(old) == (0, 0, 0)


def test_without_a_place_an_account_is_private() -> None:
    for ledger in (WorkerLedger(SharedLedger(2, 1), 0, {}), Ledger()):
        account = ledger.account("a")
        account.charge(1, 2)
        account.read()
        assert sums(account) == (1, 1, 2)
        assert account.own is account
