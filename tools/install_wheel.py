"""Compiles this checkout and installs it for the interpreter that runs this, with a line per stage: ``make wheel``.

pip and the compilers write hundreds of lines, or with ``pip -q`` none for minutes. This prints the stages of the build,
each tenth of the compilation, and after half a minute without either how far it is. The whole output is in
build/wheel.log; of a failed build the cause is printed too.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from pulse import Pulse  # noqa: E402

LOG = ROOT / "build" / "wheel.log"
COMMAND = (sys.executable, "-m", "pip", "install", "--verbose", "--no-deps", "--no-build-isolation",
           "--force-reinstall", str(ROOT))  # fmt: skip
COMPILES = "compiles"
# Beginning of a line of pip's or scikit-build-core's -> the stage that it starts.
STAGES = {
    "Preparing metadata": "reads pyproject.toml",
    "*** Configuring CMake": "configures the C++ build",
    "*** Building project": COMPILES,
    "*** Making wheel": "packs the wheel",
    "Installing collected packages": "installs the wheel",
}
# Ninja's count of finished build steps.
_STEP = re.compile(r"\[(\d+)/(\d+)\] ")
# The first line of an error of ninja's, CMake's or pip's; what follows it explains.
_CAUSE = re.compile(r"FAILED: |CMake Error|ERROR: |error: ")
CAUSE_LINES = 40


class Progress:
    """Turns lines of the build's output into the few that are shown."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._tenths = 0
        self._stage = ""
        self.latest = "starts pip"

    def shown(self, line: str) -> str | None:
        """The text to print for a line of the output, if anything."""
        text = line.strip()
        step = _STEP.match(text)
        if step is not None and self._stage == COMPILES:  # CMake's test programs are built by ninja too
            done, total = int(step[1]), int(step[2])
            self.latest = f"{COMPILES}: {done} of {total} steps"
            if (tenths := 10 * done // total) <= self._tenths:
                return None
            self._tenths = tenths
            return f"{self.latest}{self._elapsed()}"
        for begin, stage in STAGES.items():
            if text.startswith(begin) and stage != self._stage:
                self._stage = self.latest = stage
                return f"{stage}{self._elapsed()}"
        return None

    def _elapsed(self) -> str:
        return f" ({self._clock() - self._began:.0f} s)"


def cause(lines: Sequence[str]) -> Sequence[str]:
    """The part of a failed build's output that says why: from the first error on, else the end."""
    first = next((number for number, line in enumerate(lines) if _CAUSE.search(line)), len(lines) - CAUSE_LINES)
    return lines[max(first, 0) :][:CAUSE_LINES]


def install(command: Sequence[str], log: Path) -> int:
    """Run ``command``, show its progress and keep its output in ``log``; its exit status."""
    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"mlt: builds and installs the wheel, which takes minutes the first time (log: {log})", flush=True)
    progress = Progress()
    lines: list[str] = []
    build = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    with Pulse(lambda: progress.latest) as pulse, log.open("w", encoding="utf-8") as kept, build:
        assert build.stdout is not None
        for line in build.stdout:
            kept.write(line)
            kept.flush()  # for tail -f
            lines.append(line.rstrip("\n"))
            if (text := progress.shown(line)) is not None:
                pulse.report(text)
    if build.returncode:
        print("\n".join(cause(lines)), file=sys.stderr)
        print(f"mlt: the wheel could not be built (exit status {build.returncode}); see {log}", file=sys.stderr)
    return build.returncode


if __name__ == "__main__":
    try:
        raise SystemExit(install(COMMAND, LOG))
    except KeyboardInterrupt:  # the terminal interrupted the build too
        raise SystemExit(130) from None
