"""Where the time of one exchange goes: every moment of it belongs to exactly one phase. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import sub

PHASES = (
    "tls",
    "head",
    "body",
    "gate",
    "auth",
    "understand",
    "tokenize",
    "reserve",
    "queue",
    "route",
    "connect",
    "first_token",
    "relay",
)
"""In the order of an exchange. `tls`: of the first exchange of a connection, from its being
accepted to the end of the handshake; that the client then waits before it asks is no part of
it. `gate`: from the last byte of the request until it is worked on, and the checks before
authentication. `understand`: the body is parsed and judged. `queue`: waiting for a replica with
room. `first_token`: from sending to the replica until its first event, the only one that is the
replica's alone. `relay`: until the end. A retry adds to the phases that it repeats."""

_OTHERS = ("tls", "head", "body", "first_token", "relay")
OWN = tuple(phase for phase in PHASES if phase not in _OTHERS)
"""What the gateway itself takes."""

# Our own phases are short as a rule, and to word a float takes long.
_WORDED = 2000
_WORDS = tuple(f";dur={hundredths / 100:.2f}" for hundredths in range(_WORDED))


def spent_in(trail: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Seconds by phase, of phases with the instants at which they began. The last one has not
    ended."""
    if not trail:
        return {}
    # Loops in C, as this is done for each exchange.
    phases, instants = zip(*trail, strict=True)
    took = tuple(map(sub, instants[1:], instants))
    spent = dict(zip(phases, took, strict=False))
    if len(spent) < len(took):  # some came more than once
        spent = dict.fromkeys(phases[:-1], 0.0)
        for phase, seconds in zip(phases, took, strict=False):
            spent[phase] += seconds
    return spent


def server_timing(spent: Mapping[str, float], resumed: bool | None = None) -> bytes:
    """`spent` (seconds by phase) as the value of `Server-Timing` (W3C), in milliseconds.
    `resumed`: which handshake there was, if any."""
    parts = [
        phase + (_WORDS[n] if (n := int(s * 1e5 + 0.5)) < _WORDED else f";dur={s * 1e3:.2f}")
        for phase, s in spent.items()
    ]
    text = ", ".join(parts)
    if resumed is not None:
        text = text.replace("tls;", f"tls;desc={'resumed' if resumed else 'full'};", 1)
    return text.encode("ascii")
