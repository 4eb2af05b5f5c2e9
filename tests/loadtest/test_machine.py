"""What a stranger needs to know about where a run ran."""

from __future__ import annotations

import json

from loadtest.machine import machine, versions, waited_for_core_s


def test_the_machine_is_described_and_can_be_written_down() -> None:
    found = machine()
    assert found["cores"] >= found["cores_usable"] >= 1
    assert found["system"]
    assert json.loads(json.dumps(found)) == found


def test_versions() -> None:
    assert {"python", "openssl", "headrace", "uvloop"} <= set(versions())
    assert all(versions().values())


def test_the_time_without_a_core_never_falls() -> None:
    first = waited_for_core_s()
    assert 0 <= first <= waited_for_core_s()
