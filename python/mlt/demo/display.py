"""Progress while the demo runs: a live table on a terminal, plain lines anywhere else."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

from mlt.demo.events import Evaluated, Event, StepDone
from mlt.demo.report import common_accuracy
from mlt.demo.runner import RunRecord
from mlt.demo.settings import EVALUATIONS, RunSpec

REFRESHES_PER_SECOND: Final = 4
# A curve's characters, from 0 % to 100 % of test accuracy; the second for terminals without Unicode.
BLOCKS: Final = "▁▂▃▄▅▆▇█"
DIGITS: Final = "0123456789"
# Of columns: a terminal has 80 characters.
FIGURE_WIDTH: Final = 5  # "0.123", "100.0"
STEP_WIDTH: Final = 7  # "240/240"
TITLE: Final = "mlt demo: a residual network learns over the transport"
# As many as a run has evaluations (settings.EVALUATIONS): each line has the test accuracy of its own step.
PLAIN_LINES_PER_RUN: Final = 8
QUIET_SECONDS: Final = 25.0
# Losses and the like are means over this many of the latest steps: single batches vary too much.
WINDOW_STEPS: Final = 20


class Display(Protocol):
    """Progress display of the runner; a context manager."""

    def __enter__(self) -> Display: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def begin(self, run: RunSpec) -> None: ...
    def observe(self, record: RunRecord, event: Event) -> None: ...


@dataclass
class Progress:
    """Current figures of one run, from rank 0's reports (missing gradients: from all workers').

    The latest steps are kept per worker, so the order of reports from different workers does not matter: the same
    training shows the same loss.
    """

    run: RunSpec
    steps: int
    started: float | None = None
    done: int = 0
    loss: float | None = None
    train_accuracy: float | None = None
    test_accuracy: float | None = None
    test_images: int = 0
    is_tested: bool = False  # since the latest step
    sync_seconds: float | None = None
    gradient_loss: float | None = None
    recent: dict[int, deque[StepDone]] = field(default_factory=dict)  # by rank
    slowest: dict[int, float] = field(default_factory=dict)  # seconds of the slowest worker, by step
    tests: list[Evaluated] = field(default_factory=list)

    def update(self, event: Event) -> None:
        if isinstance(event, Evaluated) and event.rank == 0:  # the others' may come after rank 0's next step
            self.test_accuracy, self.test_images, self.is_tested = event.accuracy, event.images, True
            self.tests.append(event)
        if not isinstance(event, StepDone):
            return
        self.slowest[event.step] = max(self.slowest.get(event.step, 0.0), event.seconds)
        self.recent.setdefault(event.rank, deque(maxlen=WINDOW_STEPS)).append(event)
        if event.rank != 0:
            return
        self.done, self.is_tested = event.step + 1, False
        own = self.recent[0]
        everyone = [step for steps in self.recent.values() for step in steps]
        self.loss = sum(step.loss for step in own) / len(own)
        self.train_accuracy = sum(step.accuracy for step in own) / len(own)
        self.sync_seconds = sum(step.sync_seconds for step in own) / len(own)
        self.gradient_loss = sum(step.missing_bytes for step in everyone) / sum(step.bytes for step in everyone)

    @property
    def steps_per_second(self) -> float | None:
        """Steps per second of all steps so far, as in the report."""
        return len(self.slowest) / sum(self.slowest.values()) if self.slowest else None

    def seconds_to(self, accuracy: float | None) -> float | None:
        """Seconds of training until the test accuracy first was this one, as in the report; None if it never was."""
        reached = [test.step for test in self.tests if accuracy is not None and test.accuracy >= accuracy]
        return self._seconds_at(reached[0]) if reached else None

    def _seconds_at(self, step: int) -> float:
        return sum(seconds for number, seconds in self.slowest.items() if number < step)

    def curve(self, levels: str) -> str:
        """A character for each of the latest tests, from the first of ``levels`` at 0 % to the last at 100 %."""
        top = len(levels) - 1
        return "".join(levels[min(int(test.accuracy * len(levels)), top)] for test in self.tests[-EVALUATIONS:])

    def line(self) -> str:
        """The figures as one line of text; the test accuracy only if it is that of this step."""
        step, loss, test, rate, missing = self.cells()
        after = f"after {self._seconds_at(self.done):.1f} s of training"
        tested = f"test accuracy {test} % ({self.test_images:,} images) {after}, " if self.is_tested else ""
        train, sync = _shown(self.train_accuracy, "{:.1f}", 100.0), _shown(self.sync_seconds, "{:.1f}", 1e3)
        return (
            f"step {step}: training loss {loss}, train accuracy {train} %, {tested}"
            f"{rate} steps/s, sync {sync} ms, gradients missing {missing} %"
        )

    def cells(self) -> list[str]:
        """step, loss, test accuracy, steps/s and missing gradients, as text."""
        return [
            f"{self.done}/{self.steps}",
            _shown(self.loss, "{:.3f}"),
            _shown(self.test_accuracy, "{:.1f}", 100.0),
            _shown(self.steps_per_second, "{:.2f}"),
            _shown(self.gradient_loss, "{:.2f}", 100.0),
        ]


COLUMNS: Final = ("loss", "test acc. %", "steps/s", "grad. miss. %")


class LiveDisplay:
    """A table that is redrawn in place: one row per run, with a small curve of its test accuracy.

    The seconds are those to the highest multiple of 5 % that all runs tested so far have reached, as in the report.
    """

    def __init__(self, console: Console, runs: Sequence[RunSpec], *, steps: int) -> None:
        self._progress = [Progress(run, steps) for run in runs]
        self._several_seeds = len({run.seed for run in runs}) > 1
        self._levels = DIGITS if console.options.ascii_only else BLOCKS
        self._current = self._progress[0]
        self._live = Live(
            console=console, get_renderable=self._render, refresh_per_second=REFRESHES_PER_SECOND, transient=True
        )

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def begin(self, run: RunSpec) -> None:
        self._current = next(progress for progress in self._progress if progress.run == run)
        self._current.started = time.monotonic()

    def observe(self, record: RunRecord, event: Event) -> None:
        self._current.update(event)

    def _render(self) -> Table:
        tested = [progress for progress in self._progress if progress.tests]
        target = common_accuracy([test.accuracy for test in one.tests] for one in tested) if tested else None
        table = Table(title=TITLE, caption=_caption(tested), box=SIMPLE_HEAD, padding=(0, 0), show_edge=False)
        table.add_column("run", no_wrap=True)
        if self._several_seeds:
            table.add_column("seed", justify="right", width=len("seed"))
        table.add_column("curve", width=EVALUATIONS, no_wrap=True)
        table.add_column("step", justify="right", width=STEP_WIDTH)
        for column in (*COLUMNS, f"s to {_shown(target, '{:.0f}', 100.0)} %"):
            table.add_column(column, justify="right", width=max(FIGURE_WIDTH, *map(len, column.split())))
        for progress in self._progress:
            style = "bold" if progress is self._current else None
            seed = [str(progress.run.seed)] if self._several_seeds else []
            seconds = _shown(progress.seconds_to(target), "{:.1f}")
            curve = progress.curve(self._levels)
            table.add_row(progress.run.title, *seed, curve, *progress.cells(), seconds, style=style)
        return table


class PlainDisplay:
    """Lines for logs and pipes: the first step, then a few per run, and one whenever there was none for a while.

    The line of a step waits for rank 0's next report, which may be the evaluation after that step.
    """

    def __init__(self, console: Console, *, steps: int, quiet_seconds: float = QUIET_SECONDS) -> None:
        self._quiet_seconds = quiet_seconds
        self._printed = time.monotonic()
        self._is_over = threading.Event()
        self._watch = threading.Thread(target=self._report_silence, daemon=True)
        self._console = console
        self._steps = steps
        self._every = max(1, steps // PLAIN_LINES_PER_RUN)
        self._progress: Progress | None = None
        self._is_due = False  # the line of the latest step

    def __enter__(self) -> PlainDisplay:
        self._printed = time.monotonic()
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._print_due()
        self._is_over.set()
        self._watch.join()

    def begin(self, run: RunSpec) -> None:
        self._print_due()
        self._progress = Progress(run, self._steps, started=time.monotonic())
        self._print(f"run: {run.title}, seed {run.seed}")

    def observe(self, record: RunRecord, event: Event) -> None:
        if self._progress is None:
            return
        if event.rank == 0 and not isinstance(event, Evaluated):
            self._print_due()
        self._progress.update(event)
        if event.rank != 0:
            return
        if isinstance(event, StepDone):
            self._is_due = event.step == 0 or (event.step + 1) % self._every == 0
        elif isinstance(event, Evaluated):
            self._is_due = True
            self._print_due()

    def _print_due(self) -> None:
        if self._is_due and self._progress is not None:
            self._print("  " + self._progress.line())
        self._is_due = False

    def _report_silence(self) -> None:
        while not self._is_over.wait(max(self._printed + self._quiet_seconds - time.monotonic(), 0.001)):
            now, progress = time.monotonic(), self._progress
            if now - self._printed < self._quiet_seconds:
                continue
            if progress is None or progress.started is None:
                self._printed = now
                continue
            what = f"step {progress.done}/{self._steps}" if progress.done else "the processes start"
            self._print(f"  {what} ({now - progress.started:.0f} s)")

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def make_display(console: Console, runs: Sequence[RunSpec], *, steps: int, live: bool) -> Display:
    """The live table if ``live`` is set and the console is a terminal, else plain lines."""
    if live and console.is_terminal:
        return LiveDisplay(console, runs, steps=steps)
    return PlainDisplay(console, steps=steps)


def _caption(tested: Sequence[Progress]) -> str | None:
    """Meaning of the curve, and the number of images of a test: fewer during a run than at its end."""
    counts = sorted({one.test_images for one in tested})
    images = " or ".join(f"{count:,}" for count in counts)
    return f"curve: test accuracy, 0 to 100 %, of {images} images; s: seconds of training" if counts else None


def _shown(value: float | None, form: str, scale: float = 1.0) -> str:
    return "-" if value is None else form.format(value * scale)
