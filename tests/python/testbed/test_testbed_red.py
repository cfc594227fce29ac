"""Our switch port against the kernel's own ``tc red``: inside user-mode-linux, which has it.

Both queues get the same burst in the same kernel, and both must come to the arithmetic. htb lets its first burst pass
without queueing; the fluid queue of our program does not know that, red's real queue sees it.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path

import pytest
from testbed_burst import COUNTED, expected_burst
from testbed_lab import ROOT, missing

sys.path.insert(0, str(ROOT / "tests" / "support"))
user_mode_linux = import_module("user_mode_linux")

pytestmark = [
    pytest.mark.skipif(bool(user_mode_linux.missing()), reason=user_mode_linux.missing() or "-"),
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
    pytest.mark.slow,
]

MODULES = [
    "ipv6", "veth", "bridge", "sch_red", "sch_prio", "sch_htb", "sch_tbf", "sch_ingress", "cls_u32", "cls_bpf",
]  # fmt: skip
PAIRS = 60
TOLERANCE = 0.10


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """One boot for both: the burst through each queue."""
    from mlt.testbed import programs

    for source in programs.sources():
        programs.object_of(source)  # compiled outside, where it is fast
    folder: Path = tmp_path_factory.mktemp("red")
    here = Path(__file__).parent
    runs = {"ebpf": f"ebpf {PAIRS}", "red": f"red {PAIRS}"}
    python_path = os.pathsep.join([str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
    lines = [f"export PYTHONPATH={python_path} HOME={os.path.expanduser('~')} PYTHONDONTWRITEBYTECODE=1"]
    lines += [f"echo {name}: $({sys.executable} {here}/testbed_burst.py {words} 2>&1)" for name, words in runs.items()]
    output = user_mode_linux.boot(folder, MODULES, "\n".join(lines), timeout=115)
    found = dict(line.split(": ", 1) for line in output.splitlines() if line.split(":")[0] in runs)
    assert set(found) == set(runs), output
    try:
        return {name: json.loads(text) for name, text in found.items()}
    except ValueError:
        pytest.fail(output)


def test_ebpf_port__comes_to_the_arithmetic_in_another_kernel(measured: dict[str, dict[str, int]]) -> None:
    assert measured["ebpf"] is not None, "no valid measurement"
    for name, value in expected_burst(PAIRS).items():
        assert measured["ebpf"][name] == pytest.approx(value, rel=TOLERANCE), (name, measured)


def test_tc_red__marks_and_drops_what_our_port_does_to_the_same_burst(measured: dict[str, dict[str, int]]) -> None:
    from mlt.switch_configs.vendors.linux_tc import MIN_BURST_BYTES

    assert measured["red"] is not None, "no valid measurement"
    expected = expected_burst(PAIRS, passed=MIN_BURST_BYTES)
    for name in ("marked", "dropped_early", "dropped_at_limit"):
        assert measured["red"][name] == pytest.approx(expected[name], rel=TOLERANCE), (name, measured, expected)
    # The same law in both: beyond S every second packet is marked and the others are dropped.
    for kind in ("ebpf", "red"):
        found = {name: measured[kind][name] for name in COUNTED}
        assert found["marked"] == pytest.approx(found["dropped_early"], rel=TOLERANCE), (kind, measured)
