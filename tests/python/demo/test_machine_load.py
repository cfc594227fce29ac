"""The share of the cores that other programs had during a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from checks import until

from mlt.demo import machine_load
from mlt.demo.machine_load import BusyElsewhere

TICKS = os.sysconf("SC_CLK_TCK")
BURN = "import time\nwhile time.process_time() < {seconds}: pass"


class Machine:
    """A stand-in for the kernel's counts, in seconds of a core; two cores."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.busy = self.stolen = self.own = 0.0
        self._file = folder / "stat"
        monkeypatch.setattr(machine_load, "_STAT", self._file)
        monkeypatch.setattr(os, "cpu_count", lambda: 2)
        monkeypatch.setattr(os, "times", lambda: os.times_result((self.own / 2, 0.0, self.own / 2, 0.0, self.now)))
        monkeypatch.setattr(machine_load.time, "monotonic", lambda: self.now)
        self.write()

    def write(self) -> None:
        user, stolen = round(self.busy * TICKS), round(self.stolen * TICKS)
        self._file.write_text(f"cpu  {user} 0 0 900 5 6 7 {stolen} 0 0\ncpu0 1 2 3\n")

    def run(self, seconds: float, *, own: float, others: float, stolen: float = 0.0) -> None:
        self.now += seconds
        self.own += own
        self.busy += own + others
        self.stolen += stolen
        self.write()


@pytest.mark.parametrize(
    ("own", "others", "stolen", "share"),
    [(15.0, 0.0, 0.0, 0.0), (10.0, 5.0, 0.0, 0.25), (10.0, 0.0, 4.0, 0.2), (0.0, 20.0, 0.0, 1.0)],
)
def test_share__is_what_others_and_the_hypervisor_took(
    own: float, others: float, stolen: float, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, monkeypatch)
    machine.run(100, own=50, others=100)  # before
    load = BusyElsewhere()
    machine.run(10, own=own, others=others, stolen=stolen)
    assert load.share() == pytest.approx(share)


def test_share__is_unknown_where_the_system_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_load, "_STAT", tmp_path / "missing")
    assert BusyElsewhere().share() is None


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no /proc/stat")
def test_sample__counts_a_child_that_has_ended_as_own_and_in_the_machine_s_sum() -> None:
    first = machine_load._sample()
    subprocess.run([sys.executable, "-c", BURN.format(seconds=0.5)], check=True)
    assert first is not None

    def has_both() -> bool:
        last = machine_load._sample()
        assert last is not None
        return last.own - first.own >= 0.4 and last.busy - first.busy >= 0.4

    until(has_both)
