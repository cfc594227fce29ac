"""Run the micro-swarm on every core: every run of up to DEPTH choices in each scenario, or random runs from seeds.

The compiled program (tests/sim/micro_main.cc) takes one scenario, or a block of seeds, at a time. Finished ones are
written to a journal, so that an interrupted run continues where it stopped (tools/swarm.py does that for both swarms).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from swarm import Hunt, add_common_options, run

SEEDS_PER_BLOCK = 200_000
TOTALS = ("runs", "failed", "steps", "replayed")


PROGRAM = Path("build/default/tests/mlt_micro")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=Path, default=PROGRAM, help="the compiled micro-swarm (default: %(default)s)")
    parser.add_argument("--depth", type=int, default=2, help="max choices per run (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=0, help="number of random runs, instead of all runs")
    parser.add_argument("--first", type=int, default=0, help="first scenario, or first seed (default: %(default)s)")
    parser.add_argument("--scenarios", type=int, default=0, help="number of scenarios (default: all from --first on)")
    parser.add_argument("--few", action="store_true", help="use fewer kinds of choices, for greater depths")
    parser.add_argument("--without", default="", help="kinds of choices to leave out, separated by commas")
    add_common_options(parser, Path("build/micro/journal.jsonl"))
    options = parser.parse_args()
    if options.depth < 0 or options.seeds < 0 or options.jobs < 1:
        parser.error("--depth and --seeds are at least 0, --jobs at least 1")
    if not options.program.exists():
        parser.error(f"{options.program} is not built: make micro builds it")
    listed = subprocess.run([str(options.program), "--list"], capture_output=True, text=True, check=True)
    scenarios = len(listed.stdout.splitlines())
    arguments = ["--random"] if options.seeds else ["--depth", str(options.depth)]
    arguments += ["--few"] if options.few else []
    arguments += ["--without", options.without] if options.without else []
    count = options.seeds or min(options.scenarios or scenarios, scenarios - options.first)
    if count < 1:
        parser.error(f"--first is one of {scenarios} scenarios, from 0 on")
    hunt = Hunt(
        name="micro",
        program=options.program,
        arguments=tuple(arguments),
        first=options.first,
        count=count,
        block=SEEDS_PER_BLOCK if options.seeds else 1,
        totals=TOTALS,
        jobs=options.jobs,
        journal=options.journal,
    )
    return run(hunt, fresh=options.fresh)


if __name__ == "__main__":
    sys.exit(main())
