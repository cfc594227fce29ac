"""Elastic jobs between hosts: a worker joins over the network, a host vanishes, the coordinator dies and comes back."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from checks import assert_names, until
from testbed_lab import ROOT, needs_testbed

from mlt.testbed import Testbed

pytestmark = needs_testbed
pytest.importorskip("mlt._core")

PEER_TIMEOUT, WAIT = 2.0, 5.0
PORT = 29_700
EXAMPLE = [sys.executable, str(ROOT / "examples" / "elastic.py"), "--steps", "100000", "--seconds-per-step", "0.01"]


class Output:
    """A process whose lines are read as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.text = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in iter(self.process.stdout.readline, ""):
            self.text += line

    def comes_to(self, pattern: str, seconds: float = 40.0) -> re.Match[str]:
        return until(lambda: re.search(pattern, self.text), seconds)  # type: ignore[return-value]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(10.0)


class Lab:
    """A coordinator on host0, workers on the others."""

    def __init__(self, bed: Testbed) -> None:
        self.bed = bed
        self.started: list[Output] = []
        self.place = f"{bed.address('host0')}:{PORT}"

    def start(self, host: str, command: list[str], **env: str) -> Output:
        variables = {
            "MLT_ELASTIC": self.place,
            "MLT_PEER_TIMEOUT": f"{PEER_TIMEOUT:g}s",
            "MLT_SUSPENDED_TIMEOUT": f"{PEER_TIMEOUT:g}s",
            "MLT_CONNECT_TIMEOUT": "5s",
            **env,
        }
        options: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.started.append(Output(self.bed.popen(host, command, env=variables, **options)))
        return self.started[-1]

    def coordinator(self) -> Output:
        words = ["elastic", "--listen", self.place, "--min-workers", "2", "--wait", f"{WAIT:g}s"]
        return self.start("host0", [sys.executable, "-m", "mlt.cli.main", *words])

    def worker(self, number: int) -> Output:
        return self.start(f"host{number}", EXAMPLE)


@contextmanager
def lab() -> Iterator[Lab]:
    with Testbed(hosts=4, rate="200mbit") as bed:
        own = Lab(bed)
        try:
            yield own
        finally:
            for one in own.started:
                one.end()


def test_worker__joins_over_the_network_and_a_host_that_vanishes_leaves_the_others() -> None:
    with lab() as own:
        own.coordinator().comes_to("listens at")
        first, second = own.worker(1), own.worker(2)
        for one in (first, second):
            one.comes_to(r"epoch 1: rank \d of 2")
        third = own.worker(3)
        for one in (first, second, third):
            one.comes_to(r"epoch 2: rank \d of 3")
        own.bed.break_link("host3")
        for one in (first, second):
            one.comes_to(r"epoch 3: rank \d of 2", PEER_TIMEOUT + WAIT + 15)
            assert_names(one.text, "rank 2")
        assert third.process.wait(60) == 1
        assert_names(third.text, "membership coordinator at", own.place)  # away, or without an answer


def test_coordinator__that_dies_stops_no_training_and_a_new_one_takes_over() -> None:
    with lab() as own:
        coordinator = own.coordinator()
        coordinator.comes_to("listens at")
        first, second = own.worker(1), own.worker(2)
        for one in (first, second):
            one.comes_to(r"epoch 1: rank \d of 2")
        coordinator.end()
        first.comes_to("lost the membership coordinator")
        time.sleep(1.0)  # for what must not happen: no event shows it
        assert (first.process.poll(), second.process.poll()) == (None, None)
        own.coordinator().comes_to("listens at")
        third = own.worker(3)
        for one in (first, second, third):
            one.comes_to(r"epoch 2: rank \d of 3")
