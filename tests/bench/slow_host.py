"""All-reduces between four hosts of a testbed: mlt, gloo and plain TCP in turns, over equal links, over links of which
one host's has half the rate, and there by mlt with shares by rate. Needs root; about four minutes.

    python tests/bench/slow_host.py --size 4MiB --rounds 60

Prints JSON: for ``equal``, ``slow`` and ``shares`` the median seconds of each transport's second half of its rounds. In
the first half the ranks learn the rates (docs/collectives.md, "A slow host"). Not a test: no figure here decides
anything.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from mlt.testbed import Testbed, runner

HOSTS, RATE, SLOW_HOST, SLOW_RATE = 4, "200mbit", "host2", "100mbit"


def medians(bed: Testbed, words: list[str]) -> dict[str, float]:
    """Return the median of each transport's second half of rounds, by its name in the table of ``mlt perf``."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [sys.executable, "-m", "mlt.cli.main", "perf", "--pattern", "allreduce", *words, "--json", str(out)]
        outcome = runner.run(bed, command, write=lambda rank, line: lines.append(f"[{rank}] {line.decode()}"))
        if outcome.code:
            raise SystemExit("\n".join(lines)[-3_000:])
        rows = json.loads(out.read_text(encoding="utf-8"))["results"]
    return {row["label"]: statistics.median(row["samples_seconds"][len(row["samples_seconds"]) // 2 :]) for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="4MiB", help="of the tensor (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=60, help="of each transport (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="of each transport (default: %(default)s)")
    given = parser.parse_args()
    words = ["--size", given.size, "--rounds", str(given.rounds), "--turns", str(given.turns), "--compare", "gloo,tcp"]
    found = {}
    with Testbed(hosts=HOSTS, rate=RATE) as bed:
        found["equal"] = medians(bed, words)
        bed.set_rate(SLOW_RATE, link=SLOW_HOST)
        found["slow"] = medians(bed, words)
        os.environ["MLT_SHARES_BY_RATE"] = "1"
        found["shares"] = medians(bed, words)
    print(json.dumps({"schema": 1, **found}))


if __name__ == "__main__":
    main()
