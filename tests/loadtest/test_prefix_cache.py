from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadtest.replica.prefix_cache import PrefixCache


def test_a_hit_covers_whole_blocks_and_never_the_last_token():
    cache = PrefixCache(num_blocks=100, block_size=4)
    ids = list(range(10))
    assert cache.match(ids) == 0
    cache.insert(ids)
    assert len(cache) == 2
    assert cache.match(ids) == 8
    assert cache.match(ids[:8]) == 4  # the last token has to be computed
    assert cache.match(ids[:9]) == 8
    assert cache.match([*ids[:6], 99, 99, 99]) == 4


def test_the_same_block_after_another_prefix_is_another_block():
    cache = PrefixCache(num_blocks=100, block_size=2)
    cache.insert([1, 2, 3, 4])
    assert cache.match([9, 9, 3, 4, 5]) == 0


def test_salts_are_apart():
    cache = PrefixCache(num_blocks=100, block_size=2)
    cache.insert([1, 2, 3, 4], salt="a")
    assert cache.match([1, 2, 3, 4, 5], salt="b") == 0
    assert cache.match([1, 2, 3, 4, 5], salt="a") == 4


def test_the_least_recently_used_goes_and_tails_go_before_heads():
    cache = PrefixCache(num_blocks=3, block_size=1)
    cache.insert([1, 2, 3])
    cache.insert([7])
    assert cache.match([1, 2, 3, 0]) == 2
    cache.insert([1])  # touched: now [1, 2] go last
    cache.insert([8])
    assert cache.match([1, 2, 3, 0]) == 1
    assert cache.match([7, 0]) == 1


ids = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@given(st.lists(ids, max_size=8), ids)
def test_a_match_is_the_longest_common_run_of_blocks(seen, prompt):
    cache = PrefixCache(num_blocks=10_000, block_size=2)
    for one in seen:
        cache.insert(one)

    def common(one: list[int]) -> int:
        length = 0
        while length < min(len(one), len(prompt)) and one[length] == prompt[length]:
            length += 1
        return min(length // 2, (len(prompt) - 1) // 2) * 2

    assert cache.match(prompt) == max(map(common, seen), default=0)
