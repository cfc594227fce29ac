"""Measure how costs grow with ranks, keys and messages; writes docs/results/scale.md, .json and .png.

    python tools/scale                  # the targets, beside gloo: six minutes on two cores
    python tools/scale --short          # 64 ranks; 16 workers with 600 keys: half a minute; nothing is written
    python tools/scale --night          # the long form, written to build/scale; fails if a target is missed
    python tools/scale --first-use 64   # a ring of 64 ranks, connected at the start, then on first use

All ranks of a job are processes of this host. The page records a missed target as missed, and a measurement that failed
with its error; this exits with 0. With ``--short`` it exits with 1 if a limit is exceeded, and tests run that
(tests/python/perf/test_scale.py).
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cases
import pages
from limits import (
    LONG,
    SHORT,
    Form,
    Verdict,
    busy,
    check_beside_gloo,
    check_jobs,
    check_keys,
    check_messages,
    check_simulated,
    counts,
    host_and_time,
    table,
)

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def measure(form: Form) -> dict[str, Any]:
    """All figures of a form; gloo last, because it loads torch into this process."""

    def attempt(case: Callable[..., cases.Figures], *arguments: Any, **options: Any) -> cases.Figures:
        """The figures of a case; one that failed keeps its identity and the error."""
        try:
            found = case(*arguments, **options)
        except RuntimeError as problem:
            named = inspect.signature(case).bind(*arguments, **options).arguments
            found = {**{name: value for name, value in named.items() if name in cases.IDENTITY}, "error": str(problem)}
        print(json.dumps(found), flush=True)
        return found

    def job(transport: str, size: int) -> cases.Figures:
        return attempt(cases.job, transport, size, repetitions=form.repetitions, idle_seconds=form.idle_seconds)

    return {
        "jobs": [job("mlt", size) for size in form.sizes],
        "keys": [attempt(cases.key_rounds, form.workers, count, rounds=form.key_rounds) for count in form.keys],
        "messages": [
            *(attempt(cases.small_messages, "mlt", path, form.messages, cases.LISTS) for path in cases.DATAPATHS),
            *(attempt(cases.small_messages, "mlt", path, form.messages) for path in cases.DATAPATHS),
            attempt(cases.small_messages, "sockets", "UDP", form.messages),
            *([attempt(cases.small_messages, "gloo", "TCP", form.messages)] if form.gloo_sizes else []),
        ],
        "simulated": [attempt(cases.simulated_job, size) for size in form.simulated_sizes],
        "gloo": [job("gloo", size) for size in form.gloo_sizes],
    }


def check(form: Form, figures: dict[str, Any]) -> list[Verdict]:
    return [
        *check_jobs(form, figures["jobs"]),
        *check_keys(form, figures["keys"]),
        *check_messages(form, figures["messages"]),
        *check_simulated(form, figures["simulated"]),
        *check_beside_gloo(figures["jobs"], figures["gloo"]),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="the short form, with limits that CI holds")
    parser.add_argument("--night", action="store_true", help="write to build/scale, and fail if a target is missed")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for the results (default: %(default)s)")
    parser.add_argument(
        "--first-use", type=int, metavar="RANKS", help="only a ring of so many ranks, connected both ways"
    )
    options = parser.parse_args()
    if options.first_use:
        for connects_on_use in (False, True):
            print(json.dumps(cases.first_use(options.first_use, connects_on_use, repetitions=3)), flush=True)
        return 0
    load = os.getloadavg()[0]
    form = SHORT if options.short else LONG
    figures = measure(form)
    verdicts = check(form, figures)
    lines = table(verdicts)
    print("\n".join(lines), flush=True)
    if options.short:
        return int(any(one.met is False for one in verdicts))
    met, checked = counts(verdicts)
    head = f"Written by `make scale` on {host_and_time()}. {met} of {checked} targets met."
    if options.night:
        options.output = RESULTS.parents[1] / "build" / "scale"
    options.output.mkdir(parents=True, exist_ok=True)
    text = pages.page(figures, lines, "\n".join([head, *busy(load)]), "make scale")
    (options.output / "scale.md").write_text(text, encoding="utf-8")
    stored = {"schema": 1, **figures, "verdicts": [vars(one) for one in verdicts], "load_before": load}
    (options.output / "scale.json").write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    pages.draw(figures, options.output / pages.PICTURE)
    return int(options.night and met < checked)


if __name__ == "__main__":
    sys.exit(main())
