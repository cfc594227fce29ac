"""``mlt._named.waiting``: whether a thread is left that could submit what other ranks wait for."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from checks import until

from mlt._named.waiting import Key, WaitingThreads, lent_thread


@contextmanager
def thread_that_waits(own: WaitingThreads, key: Key, *, lent: bool = False) -> Iterator[None]:
    end = threading.Event()

    def wait() -> None:
        with lent_thread() if lent else nullcontext(), own.waiting(key):
            end.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: key in own.state()[0])
    try:
        yield
    finally:
        end.set()
        thread.join()


def others(own: WaitingThreads) -> set[str]:
    """The threads that could submit more, of those of this test."""
    return {name for name in own.state()[1] if name in ("MainThread", "worker")}


def test_state__names_the_threads_that_do_not_wait() -> None:
    own = WaitingThreads()
    assert own.state()[0] == ()
    assert others(own) == {"MainThread"}
    with thread_that_waits(own, (0, "a")):
        assert own.state()[0] == ((0, "a"),)
        assert others(own) == {"MainThread"}
        with own.waiting((1, "b")):
            assert own.state()[0] == ((0, "a"), (1, "b"))
            assert others(own) == set()
            end = threading.Event()
            worker = threading.Thread(target=end.wait, name="worker")
            worker.start()
            assert others(own) == {"worker"}
            end.set()
            worker.join()
    assert own.state()[0] == ()


ALONE = """
import _thread, sys, threading, time
from contextlib import nullcontext
from mlt._named.waiting import WaitingThreads, lent_thread

own = WaitingThreads()
mlt = threading.Thread(target=time.sleep, args=(9,), name="mlt-named", daemon=True)
mlt.start()

def start(*, lent):
    def wait():
        with lent_thread() if lent else nullcontext(), own.waiting((0, str(lent))):
            time.sleep(9)
    _thread.start_new_thread(wait, ())
    while (0, str(lent)) not in own.state()[0]:
        pass

print(own.state()[1])
with lent_thread(), own.waiting((0, "main")):
    worker = threading.Thread(target=time.sleep, args=(0.1,), name="worker")
    worker.start()
    print(own.state()[1])
    worker.join()
start(lent=False)
print(own.state()[1])
start(lent=True)
print(own.state()[1])
before = len(sys._current_frames())
_thread.start_new_thread(lambda: time.sleep(9), ())
while len(sys._current_frames()) == before:
    pass
print(own.state()[1])
"""


def test_state__a_thread_that_lent_its_work_to_another_waits() -> None:
    # In a process of its own, whose threads are known.
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [
        "('MainThread',)",
        "('worker',)",
        "('MainThread',)",
        "()",
        "('MainThread', 'a thread without a name')",
    ]
