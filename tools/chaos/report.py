"""The result of a run, for the terminal and for docs/results/chaos.md."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from run import Outcome

WHAT = {
    "kill": "SIGKILL of a rank; a new process that comes as the same rank must be refused",
    "stop": "SIGSTOP and SIGCONT, 10 ms to 0.45 s",
    "long_stop": "the same for 1.2 to 1.8 peer timeouts (1, 1.5 or 3 s)",
    "partition": "a host's link loses everything, 30 ms to 0.6 s",
    "one_way": "the same in one direction",
    "long_partition": "the same both ways for 1.2 to 1.8 peer timeouts",
    "clock": "a rank's wall clock jumps by up to 48 hours, either way",
    "slow_path": "all packets over one spine come 15 ms later, for 0.2 to 1.5 s",
    "trickle": "a link at 0.2 % of its rate, 30 ms to 0.6 s",
    "interface": "a host's interface down and up, 30 ms to 0.6 s",
    "unplug": "a leaf's link to a spine unplugged; routes change",
    "burst": "0.1, 2 or 20 % of all packets over a spine lost, or 5 % copied as well",
    "damage": "5 % of all packets over a spine 2 ms late, 2 % copied, 2 % with a wrong bit",
}
STATUSES = (
    "complete", "within_bound", "deadline", "size_mismatch", "type_mismatch", "peer_failed", "timed_out", "cancelled",
)  # fmt: skip
VERBS = ("send", "receive", "all_reduce", "all_to_all", "gather")


@dataclass
class Verdict:
    """Output of mlt_chaos_check."""

    broken: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Verdict:
        found = cls()
        for line in text.splitlines():
            if line.startswith("broken rule"):
                found.broken.append(line)
            else:
                name, number = line.split()
                found.numbers[name] = int(number)
        return found

    def status(self, verb: str, status: str) -> int:
        return self.numbers.get(f"status.{verb}.{status}", 0)

    def worst(self, kind: str) -> str:
        nanoseconds = self.numbers.get(f"worst.{kind}")
        return "-" if nanoseconds is None else f"{nanoseconds / 1e9:.2f} s"


def summary(verdict: Verdict, outcome: Outcome) -> list[str]:
    numbers = verdict.numbers
    return [
        f"{outcome.jobs} jobs in {outcome.seconds:.0f} s: {numbers['operations']:,} operations, "
        f"{numbers['lost']:,} of them in processes that were killed; "
        f"{len(verdict.broken) + len(outcome.wrong)} rules broken",
        f"{numbers['bytes'] / 1e6:,.1f} MB received well, {numbers['missing_bytes'] / 1e6:,.1f} MB of it missing "
        "within its bounds",
        f"{numbers['receives_without_drops']:,} patient receives while nothing was dropped: none may lose a byte",
        f"{outcome.rejoins_refused} killed ranks came again and were refused; the machine kept a thread waiting for "
        f"{outcome.worst_stall_ns / 1e6:.0f} ms at most",
    ]


def show(verdict: Verdict, outcome: Outcome) -> None:
    """Print the result."""
    console = Console()
    for line in summary(verdict, outcome):
        console.print(line, highlight=False)
    table = Table("operation", *STATUSES)
    for verb in VERBS:
        table.add_row(verb, *(f"{verdict.status(verb, status):,}" for status in STATUSES))
    console.print(table)
    table = Table("fault", "times", "worst end")
    for kind, times in sorted(outcome.faults.items()):
        table.add_row(kind, str(times), verdict.worst("stop" if kind == "long_stop" else kind))
    console.print(table)


def markdown(seed: int, seconds: float, verdict: Verdict, outcome: Outcome, machine: list[int]) -> str:
    """Text of docs/results/chaos.md."""
    when = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        "# Real ranks in a bad network, checked by the oracle",
        "",
        f'Made by `make chaos CHAOS_ARGS="--seconds {seconds:g} --seed {seed}"` on {when}: {machine[1]} '
        f"ranks on hosts of one testbed, {machine[0]} shared cores, load average "
        f"{os.getloadavg()[1]:.1f} over the last five minutes. [simulator.md](../simulator.md) says what is run "
        "and what is held against it.",
        "",
        *(f"- {line}" for line in summary(verdict, outcome)),
        "",
        "## How operations ended",
        "",
        f"| operation | {' | '.join(STATUSES)} |",
        f"|{'---|' * (len(STATUSES) + 1)}",
    ]
    for verb in VERBS:
        lines.append(f"| {verb} | {' | '.join(f'{verdict.status(verb, status):,}' for status in STATUSES)} |")
    lines += [
        "",
        "## What was done",
        "",
        "*Worst end* is the longest time from the fault's begin, or the post if that was later, to the end of an",
        "operation that was in progress during the fault, whatever bounded it: often its own time-out of up to 8 s.",
        "",
        "| fault | times | what | worst end |",
        "|---|---|---|---|",
    ]
    for kind, what in WHAT.items():
        worst = verdict.worst("stop" if kind == "long_stop" else kind)
        lines.append(f"| {kind} | {outcome.faults[kind]} | {what} | {worst} |")
    if verdict.broken or outcome.wrong:
        lines += ["", "## Broken", "", *(f"- {text}" for text in [*outcome.wrong, *verdict.broken][:40])]
    return "\n".join(lines) + "\n"
