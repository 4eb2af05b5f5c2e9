"""Clocks are arguments. Instants named `*_at` are seconds on the monotonic clock."""

from __future__ import annotations

from collections.abc import Callable

Clock = Callable[[], float]
"""Returns seconds. Monotonic unless the name says `wall`."""
