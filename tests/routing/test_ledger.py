from __future__ import annotations

import random

from routing.ledger import Account, Charge


def fail() -> None:
    raise AssertionError("underflow")


def test_charges_at_once_and_moves_at_the_first_token() -> None:
    account = Account()
    charge = Charge(account, pending=100, live=400, on_underflow=fail)
    assert (account.pending_tokens, account.in_flight, account.live_tokens) == (100, 1, 400)
    charge.prefilled()
    assert (account.pending_tokens, account.in_flight, account.live_tokens) == (0, 1, 400)
    charge.free()
    assert (account.pending_tokens, account.in_flight, account.live_tokens) == (0, 0, 0)


def test_every_step_is_idempotent() -> None:
    account = Account()
    other = Charge(account, pending=7, live=9, on_underflow=fail)
    charge = Charge(account, pending=100, live=400, on_underflow=fail)
    for _ in range(3):
        charge.prefilled()
    for _ in range(3):
        charge.free()
        charge.prefilled()
    assert (account.pending_tokens, account.in_flight, account.live_tokens) == (7, 1, 9)
    other.free()
    assert (account.pending_tokens, account.in_flight, account.live_tokens) == (0, 0, 0)


def test_underflow_is_clamped_and_counted() -> None:
    seen: list[int] = []
    account = Account()
    charge = Charge(account, pending=10, live=20, on_underflow=lambda: seen.append(1))
    account.pending_tokens = 3
    account.live_tokens = 0
    charge.free()
    assert len(seen) == 2
    assert (account.pending_tokens, account.in_flight, account.live_tokens) == (0, 0, 0)


def test_a_thousand_lives_leave_nothing() -> None:
    rng = random.Random(1)
    accounts = [Account() for _ in range(4)]
    alive: list[Charge] = []
    for _ in range(1000):
        pending = rng.randint(1, 10**6)
        account = rng.choice(accounts)
        alive.append(
            Charge(account, pending=pending, live=pending + rng.randint(0, 500), on_underflow=fail)
        )
        for charge in rng.sample(alive, rng.randint(0, min(3, len(alive)))):
            rng.choice((charge.prefilled, charge.free))()
    assert any(account.in_flight for account in accounts)
    for charge in alive:
        charge.free()
    for account in accounts:
        assert (account.pending_tokens, account.in_flight, account.live_tokens) == (0, 0, 0)
