from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from auth.throttle import AddressBuckets


def test_a_bucket_empties_and_fills() -> None:
    buckets = AddressBuckets(per_s=2, burst=3)
    assert [buckets.take("a", 100.0) for _ in range(5)] == [0, 0, 0, 0.5, 0.5]
    assert buckets.take("b", 100.0) == 0
    assert buckets.wait_s("a", 100.25) == 0.25
    assert [buckets.take("a", 100.5) for _ in range(2)] == [0, 0.5]
    assert [buckets.take("a", 200.0) for _ in range(4)] == [0, 0, 0, 0.5]


def test_to_look_takes_nothing() -> None:
    buckets = AddressBuckets(per_s=1, burst=1)
    assert [buckets.wait_s("a", 0.0) for _ in range(3)] == [0, 0, 0]
    assert buckets.take("a", 0.0) == 0


def test_who_has_no_address_is_not_counted() -> None:
    buckets = AddressBuckets(per_s=1, burst=1)
    assert [buckets.take("", 0.0) for _ in range(3)] == [0, 0, 0]


def test_the_table_is_bounded() -> None:
    buckets = AddressBuckets(per_s=1, burst=1, limit=2)
    for name in "abc":
        buckets.take(name, 0.0)
    assert "2 of at most 2" in repr(buckets)
    assert buckets.wait_s("a", 0.0) == 0
    assert buckets.wait_s("b", 0.0) > 0


@given(
    st.floats(0.1, 100),
    st.integers(1, 20),
    st.lists(st.floats(0, 3, allow_nan=False), min_size=1, max_size=60),
)
def test_no_more_than_burst_and_rate(per_s: float, burst: int, pauses: list[float]) -> None:
    buckets, now, taken = AddressBuckets(per_s, burst), 0.0, 0
    for pause in pauses:
        now += pause
        taken += buckets.take("a", now) == 0
    assert taken <= burst + per_s * now + 1e-6
