"""A lock that two processes want."""

from __future__ import annotations

import os
import signal

from core.shared_lock import SharedLock


def test_it_is_not_to_be_had_while_another_holds_it_and_free_when_that_one_dies() -> None:
    lock = SharedLock()
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(told, b"1" if lock.take() else b"0")
            signal.pause()
        finally:
            os._exit(0)
    try:
        assert os.read(ready, 1) == b"1"
        assert not lock.take()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(told)
    assert lock.take()
    lock.give()
    lock.give()
    assert lock.take()
    lock.give()
