from __future__ import annotations

import hashlib
import hmac

from hypothesis import given
from hypothesis import strategies as st

from core.principal import Principal
from routing.config import ShareCache
from routing.salts import CacheSalts

NAMES = st.sampled_from(["a", "b", "c", "ab", "\u00ff", "\u00fe", "\u00ffa", "a\u00ffb", "\u00e9"])
CALLERS = st.builds(
    Principal,
    tenant=NAMES,
    organisation=st.one_of(st.just(""), NAMES),
    subject=NAMES,
    tier=NAMES,
    key=NAMES,
)


@st.composite
def groups(draw: st.DrawFn) -> tuple[tuple[str, ...], ...]:
    """Some tenants, no one in two groups."""
    names = draw(st.lists(NAMES, unique=True))
    cut = draw(st.integers(0, len(names)))
    return tuple(tuple(part) for part in (names[:cut], names[cut:]) if part)


def may_share(a: Principal, b: Principal, share: ShareCache) -> bool:
    """The rule in words: one organisation, one group, or else one tenant."""
    if share == "organisation" and (a.organisation or b.organisation):
        return a.organisation == b.organisation
    if isinstance(share, tuple) and any({a.tenant, b.tenant} <= set(group) for group in share):
        return True
    return a.tenant == b.tenant


@given(a=CALLERS, b=CALLERS, share=st.one_of(st.just("tenant"), st.just("organisation"), groups()))
def test_two_callers_have_one_salt_exactly_when_they_may_share(
    a: Principal, b: Principal, share: ShareCache
) -> None:
    salts = CacheSalts("secret", share)
    assert (salts.of(a) == salts.of(b)) is may_share(a, b, share)


def test_without_a_secret_all_share() -> None:
    salts = CacheSalts("")
    assert salts.of(Principal("a")) == salts.of(Principal("b")) == ""


def test_a_salt_is_an_hmac_in_hex() -> None:
    expected = hmac.new(b"secret", b"acme", hashlib.sha256).hexdigest()[:32]
    assert CacheSalts("secret").of(Principal("acme")) == expected
    # A tenant in no group keeps its salt when groups are introduced.
    assert CacheSalts("secret", (("b", "c"),)).of(Principal("acme")) == expected
    assert CacheSalts("other").of(Principal("acme")) != expected


def test_the_order_of_a_group_is_of_no_matter_and_its_members_are() -> None:
    def salt(*group: str) -> str:
        return CacheSalts("secret", (group,)).of(Principal("a"))

    assert salt("a", "b") == salt("b", "a")
    assert salt("a", "b") != salt("a", "b", "c")
