"""docs/results/collective-speed.md: a table for each network and number of ranks."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Sequence

from calls import VERBS

Times = dict[str, dict[str, dict[str, float]]]  # verb, size in bytes, transport: seconds of a call


def size_text(size: str) -> str:
    """
    >>> size_text("4"), size_text("262144"), size_text("4194304")
    ('4 B', '256 KiB', '4 MiB')
    """
    count, unit = int(size), "B"
    for larger in ("KiB", "MiB"):
        if count >= 1024:
            count, unit = count // 1024, larger
    return f"{count} {unit}"


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f}" if seconds * 1e6 >= 10 else f"{seconds * 1e6:.1f}"


def merged(one: Times, other: Times) -> Times:
    """The cells of both."""
    return {verb: {size: {**cell, **other[verb][size]} for size, cell in row.items()} for verb, row in one.items()}


def lines(title: str, times: Times) -> Iterator[str]:
    """The table, below a sentence for each peer that names the cells in which that peer is faster."""
    sizes = list(times[VERBS[0]])
    cells = {(verb, size): one for verb in VERBS for size, one in times[verb].items()}
    peers = [name for name in next(iter(cells.values())) if name != "mlt"]
    day = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    load = f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} in the last minute"
    yield f"\n## {title}\n"
    yield f"{day}, {load}: {' / '.join(['mlt', *peers])}.\n"
    for peer in peers:
        ahead = [f"{verb} of {size_text(size)}" for (verb, size), one in cells.items() if one[peer] < one["mlt"]]
        yield f"{peer} is faster in {len(ahead)} of {len(cells)} cells{': ' if ahead else ''}{', '.join(ahead)}.\n"
    yield f"| | {' | '.join(map(size_text, sizes))} |"
    yield "|---" * (len(sizes) + 1) + "|"
    for verb in VERBS:
        row = [" / ".join(_microseconds(one[name]) for name in ("mlt", *peers)) for one in times[verb].values()]
        yield f"| `{verb}` | {' | '.join([*row, *[''] * (len(sizes) - len(row))])} |"


def page(tables: Sequence[tuple[str, Times]], skipped: str | None, before: str = "") -> str:
    """The page. ``before``: the last one, of which it keeps the tables that were not measured now."""
    head = [
        "# Every collective beside gloo and Open MPI",
        "\nMade by `make collective-speed`; each table has its date.\n",
        "Each cell has the microseconds of a call by mlt, by gloo, and on one host by Open MPI through shared",
        "memory and over TCP: the mean of all calls in five blocks, at the slowest rank. mlt and gloo are in the",
        "same processes and take turns; Open MPI's processes (`mpirun`) run right after these. The tensors are",
        "float32; the size is that of the whole tensor, of which each rank has a part in the verbs with parts;",
        "rank 0 is the root. Between ranks of one host mlt uses shared memory, gloo TCP; on testbeds its TCP uses",
        "cubic.",
    ]
    if skipped is not None:
        head.append(f"\nOpen MPI is missing: {skipped}")
    body = [line for title, times in tables for line in lines(title, times)]
    measured = {title for title, _ in tables}
    kept = [part for part in before.split("\n## ")[1:] if part.partition("\n")[0] not in measured]
    return "\n".join([*head, *body]) + "\n" + "".join(f"\n## {part.rstrip()}\n" for part in kept)
