"""Assertions about texts, and waits: for facts and for events, not for sentences and time."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")


def names(*facts: object) -> str:
    """A pattern for ``pytest.raises(match=...)``: a text with each of these, in any order."""
    return "(?s)^" + "".join(f"(?=.*{re.escape(str(fact))})" for fact in facts)


def assert_names(text: object, *facts: object) -> None:
    """Each of ``facts`` is in ``text``: ranks, files, options and causes, whatever the words between them, and wherever
    its lines break."""
    one_line = " ".join(str(text).split())
    missing = [str(fact) for fact in facts if str(fact) not in str(text) and str(fact) not in one_line]
    assert facts, "no fact to look for"
    assert not missing, f"{missing} not in {str(text)!r}"


def until(condition: Callable[[], Value], seconds: float = 40.0, *, every: float = 0.02) -> Value:
    """Wait for a condition to hold, and return its value; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        time.sleep(every)
    return value


def in_threads(work: Callable[..., object], arguments: Iterable[tuple[object, ...]]) -> None:
    """``work`` with each of ``arguments``, all at once, each in a thread of its own, until all have returned."""
    threads = [threading.Thread(target=work, args=one) for one in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def strike(pid: int, number: int = signal.SIGSTOP) -> float:
    """Send a signal to a process, and return the time at which it had its effect: SIGSTOP is delivered to one thread,
    and on a loaded machine the others run on for milliseconds until that one stops them."""
    os.kill(pid, number)
    if number == signal.SIGSTOP:
        until(lambda: all(state in "TtZX" for state in thread_states(pid)), every=0.001)
    return time.monotonic()


def thread_states(pid: int) -> list[str]:
    """The state of each thread of a process, as proc(5) spells it: T is stopped."""
    states = []
    for status in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            states.append(status.read_text(encoding="latin-1").rpartition(")")[2].split()[0])
    return states


def all_gone(pids: Iterable[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)
