"""Entry point of ``mlt``. A sub-command's module is imported only when that command runs or shows its help.

Imports almost nothing before it has chosen: a Ctrl-C that comes this early must not end in a traceback, and ``mlt``
alone must answer at once.
"""

from __future__ import annotations

# What signal wraps in enumerations, which take longer to import than the interpreter needs to reach this line.
import _signal  # type: ignore[import-not-found]
import os
import sys

# Command -> (module with an ``app: typer.Typer``, one-line help)
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("mlt.cli.demo", "Train a small model with and without packet loss, and compare the results"),
    "launch": ("mlt.cli.launch", "Run a program as all ranks of a job on this host"),
    "serve": ("mlt.cli.serve", "Run a summation service until every worker has left"),
    "elastic": ("mlt.cli.elastic", "Run the membership coordinator of a job whose workers join and leave"),
    "perf": ("mlt.cli.perf", "Measure goodput and latency of mlt and other transports in one run"),
    "plan": ("mlt.cli.plan", "Plan placement, aggregation and routes from one cluster file"),
    "doctor": ("mlt.cli.doctor", "Check this host, the path to another host, or a switch"),
    "completion": ("mlt.cli.completion", "Print a shell's completion of commands and options"),
    "testbed": ("mlt.cli.testbed", "Emulate hosts and an impaired network on this host"),
    "switch": ("mlt.cli.switch", "Generate, apply and verify switch QoS configurations from one policy file"),
}
# Shown by ``mlt`` alone: command, what it does.
FIRST_STEPS = (
    ("mlt doctor", "Check this host, in two seconds"),
    ("mlt perf --local", "Measure mlt between two processes of this host"),
    ("mlt launch -n 2 mlt perf", "Run a program, here mlt perf, as a job of two ranks on this host"),
    ("mlt testbed run --hosts 2 --loss 1% -- mlt perf", "Run it on two emulated hosts, over a network with loss"),
    ("mlt demo", "Train a model with and without packet loss; needs the extra demo"),
)
# Holds the words of a command line that a shell completes (mlt.cli.completion).
COMPLETION_VARIABLE = "_MLT_COMPLETE_WORDS"


def _end_at_once(number: int, _frame: object) -> None:
    os._exit(128 + number)


def _show_first_steps() -> None:
    from mlt.cli.layout import paragraph, rows

    print(rows("What to try first", FIRST_STEPS))
    own = "For a program of your own, write python YOUR_SCRIPT.py in place of the last mlt perf."
    more = "All commands: mlt -h. Their options: mlt COMMAND -h. Completion of both: mlt completion -h."
    print(f"\n{paragraph(own, indent=0)}\n\n{paragraph(more, indent=0)}")


def main() -> None:
    """Entry point of the ``mlt`` script."""
    # While Python imports and while it ends, Ctrl-C has nothing to clean up; between them it is a KeyboardInterrupt.
    handler = _signal.getsignal(_signal.SIGINT)
    is_ignored = handler is _signal.SIG_IGN
    if not is_ignored:
        _signal.signal(_signal.SIGINT, _end_at_once)
    try:
        from mlt.cli.ending import finish, open_streams

        open_streams()
        words = os.environ.get(COMPLETION_VARIABLE)
        arguments = sys.argv[1:]
        if not arguments and words is None:
            finish(_show_first_steps)
        from mlt.cli.delegate import imported
        from mlt.cli.style import run

        name = arguments[0] if arguments else ""
        is_chosen = words is None and name in COMMANDS
        command = imported(COMMANDS[name][0] if is_chosen else "mlt.cli.root")
        if not is_ignored:
            _signal.signal(_signal.SIGINT, handler)
        if words is not None:
            from mlt.cli.completion import answer

            answer(command, words)
        elif is_chosen:
            run(command, arguments[1:], f"mlt {name}")
        else:
            run(command, arguments, "mlt")
    finally:
        if not is_ignored:
            _signal.signal(_signal.SIGINT, _end_at_once)


if __name__ == "__main__":
    main()
