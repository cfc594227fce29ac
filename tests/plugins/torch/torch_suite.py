"""PyTorch's own tests of c10d's collectives (shipped in its wheel), over mlt: what gloo passes here, mlt must pass.

    python tests/plugins/torch/torch_suite.py                  every test: gloo first, then mlt if gloo passed
    python tests/plugins/torch/torch_suite.py all_reduce -v    the tests whose names contain "all_reduce"

The suite decides by the name of the backend, when it is imported, which tests exist. So it is imported under the name
"gloo" and told the true one before each test.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
import unittest
import warnings
from pathlib import Path
from typing import Any

# Why a test that gloo passes cannot pass over another backend. A test listed here that passes is an error as well.
EXCEPTIONS = dict.fromkeys(
    ("test_monitored_barrier_gloo", "test_monitored_barrier_gloo_subgroup"),
    "torch.distributed.monitored_barrier refuses every backend but gloo (the group's own monitored_barrier works)",
)

# Tests whose bodies ask for the name "gloo": they are told so, and the groups that they make are of mlt all the same.
TOLD_GLOO = frozenset(
    "test_accumulate_gradients_no_sync" + form
    for form in ("", "_allreduce_hook", "_allreduce_with_then_hook", "_grad_is_view")
)

os.environ["BACKEND"] = "gloo"
os.environ.setdefault("WORLD_SIZE", "2")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TEMP_DIR"] = tempfile.mkdtemp(prefix="torch-suite-")
for folder in ("barrier", "test_dir", "init_dir"):
    (Path(os.environ["TEMP_DIR"]) / folder).mkdir()

warnings.filterwarnings("ignore")
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing  # noqa: E402
from torch.testing._internal.distributed import distributed_test as suite  # noqa: E402


class TestDist(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc]
    """Every test of the suite, each in new processes, WORLD_SIZE of them.

    Forked ones: spawned ones would import torch anew for every test, which takes longer than the test.
    """

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, pipe: Any, **arguments: Any) -> None:
        if suite.BACKEND == "mlt" and test_name in TOLD_GLOO:
            suite.BACKEND = "gloo"
            original = dist.init_process_group
            dist.init_process_group = lambda *_, **options: original(**{**options, "backend": "mlt"})
        super()._run(rank, test_name, file_name, pipe, **arguments)


class Outcome(unittest.TestResult):
    """One test's end: passed, skipped or failed, and why."""

    state = "passed"
    reason = ""

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self.state, self.reason = "skipped", reason

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self.state, self.reason = "failed", self.failures[-1][1]

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self.state, self.reason = "failed", self.errors[-1][1]


def names(containing: list[str]) -> list[str]:
    """The suite's tests, in order of their names; all, or those whose names contain one of these texts."""
    every = unittest.TestLoader().getTestCaseNames(TestDist)
    return [name for name in every if not containing or any(part in name for part in containing)]


def run(name: str, backend: str) -> Outcome:
    """Run one test over one backend."""
    suite.BACKEND = backend
    outcome = Outcome()
    TestDist(name).run(outcome)
    return outcome


def compare(chosen: list[str], *, verbose: bool) -> dict[str, dict[str, Any]]:
    """The result of each test over gloo and, where gloo passed, over mlt; prints each as it ends."""
    results: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(chosen, 1):
        started = time.monotonic()
        gloo = run(name, "gloo")
        mlt = run(name, "mlt") if gloo.state == "passed" else None
        results[name] = {
            "gloo": gloo.state,
            "mlt": mlt.state if mlt else "not run",
            "why": (mlt or gloo).reason,
            "seconds": round(time.monotonic() - started, 1),
        }
        if verbose or mlt is not None:
            print(f"[{number}/{len(chosen)}] {name}: gloo {gloo.state}, mlt {results[name]['mlt']}", flush=True)
    return results


def check(results: dict[str, dict[str, Any]]) -> list[str]:
    """The problems in these results, a line each: nothing if mlt passed what gloo passed, less the exceptions."""
    wrong = []
    for name, result in results.items():
        if result["gloo"] != "passed":
            continue
        if result["mlt"] == "passed" and name in EXCEPTIONS:
            wrong.append(f"{name}: passes, yet it is listed as an exception ({EXCEPTIONS[name]})")
        elif result["mlt"] != "passed" and name not in EXCEPTIONS:
            wrong.append(f"{name}: {result['mlt']} over mlt, passed over gloo\n{result['why']}")
    return wrong


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("containing", nargs="*", help="only tests whose names contain one of these texts")
    parser.add_argument("--exact", action="store_true", help="the texts are whole names of tests")
    parser.add_argument("--json", type=Path, help="write every result to this file")
    parser.add_argument("-v", "--verbose", action="store_true", help="also name the tests that gloo does not pass here")
    chosen = parser.parse_args(arguments)
    selected = names(chosen.containing)
    if chosen.exact:
        missing = sorted(set(chosen.containing) - set(selected))
        if missing:
            parser.error(f"this version of torch has no tests named {', '.join(missing)}")
        selected = [name for name in selected if name in chosen.containing]
    if not selected:
        parser.error("no test has such a name")
    logging.disable(logging.WARNING)
    results = compare(selected, verbose=chosen.verbose)
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1))
    by_gloo = [name for name, result in results.items() if result["gloo"] == "passed"]
    passed = [name for name in by_gloo if results[name]["mlt"] == "passed"]
    print(f"{len(results)} tests: gloo passes {len(by_gloo)} here, mlt {len(passed)} of these")
    for name in by_gloo:
        if name in EXCEPTIONS:
            print(f"exception: {name}: {EXCEPTIONS[name]}")
    wrong = check(results)
    for line in wrong:
        print(f"wrong: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
