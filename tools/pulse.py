"""Runs a command that may be silent for minutes, with a line every half minute: ``python tools/pulse.py TEXT COMMAND``.

``make`` runs pip by this. ``Pulse`` does the same for what shows progress of its own, such as tools/install_wheel.py.
Needs nothing but Python: it runs before anything is installed.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

# Seconds without output after which a line appears.
QUIET_SECONDS = 25.0


class Pulse:
    """A context manager that prints ``text()`` and the time so far whenever nothing was reported for a while."""

    def __init__(self, text: Callable[[], str], *, quiet_seconds: float = QUIET_SECONDS) -> None:
        self._text = text
        self._quiet_seconds = quiet_seconds
        self._began = self._reported = time.monotonic()
        # On a terminal the cursor may be behind a progress bar, which pip draws again below: the bar's line is erased.
        self._line_start = "\r\x1b[K" if sys.stdout.isatty() else ""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def report(self, text: str) -> None:
        """Print a line, which starts the wait anew."""
        self._reported = time.monotonic()
        print(f"{self._line_start}mlt: {text}", flush=True)

    def _run(self) -> None:
        while not self._is_over.wait(max(self._reported + self._quiet_seconds - time.monotonic(), 0.001)):
            now = time.monotonic()
            if now - self._reported >= self._quiet_seconds:
                self.report(f"still {self._text()} ({now - self._began:.0f} s)")


def main() -> int:
    text, *command = sys.argv[1:]
    with Pulse(lambda: text):
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:  # the terminal interrupted the command too
        raise SystemExit(130) from None
