"""A job by a plan: ``mlt plan assign`` for hosts with links of different rates, and push-pull that carries it out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed_lab import needs_testbed, python

from mlt.testbed import Testbed

pytestmark = needs_testbed
pytest.importorskip("mlt._core")

WORKERS, STEPS, ELEMENTS = 3, 3, 1 << 20
SEGMENT_BYTES = 1_432
RATES = (200, 200, 200, 600)  # Mbit/s of the hosts' links; the last host has no worker
HOSTS = [f"host{i}" for i in range(len(RATES))]
WORKER = f"""
import json, numpy as np, mlt
with mlt.Context(connect_timeout=20) as context:
    push = mlt.PushPull(context)
    for step in range({STEPS}):
        tensor = np.full({ELEMENTS}, 1.0 + context.rank + step, np.float32)
        push.push_pull(tensor, key=0).wait(30)
        assert (tensor == {(WORKERS + 1) / 2} + step).all()
    print(json.dumps(context.service_loads))
"""
SERVICE = """
import json, mlt
with mlt.Context(connect_timeout=20) as context:
    mlt.SummationService(context).run()
    print(json.dumps(context.counters()))
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """The plan of ``mlt plan assign`` for the hosts."""
    lines = ["name: unequal", "hosts:"]
    lines += [f"  - {{name: {host}, bandwidth: {rate} Mbit/s}}" for host, rate in zip(HOSTS, RATES, strict=True)]
    lines += ["switches:", "  - {name: switch}", "links:"]
    lines += [
        f"  - {{a: {host}, b: switch, bandwidth: {rate} Mbit/s}}" for host, rate in zip(HOSTS, RATES, strict=True)
    ]
    workers, servers = ", ".join(HOSTS[:WORKERS]), ", ".join(HOSTS[WORKERS:])
    lines += ["jobs:", f"  - {{name: job, model_size: 4 MB, workers: [{workers}], servers: [{servers}]}}"]
    cluster, path = tmp_path / "cluster.yaml", tmp_path / "plan.json"
    cluster.write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["plan", "assign", str(cluster), "-o", str(path)]
    subprocess.run([sys.executable, "-m", "mlt.cli.main", *words], check=True, timeout=60, capture_output=True)
    return path


@pytest.fixture
def bed() -> Iterator[Testbed]:
    with Testbed(hosts=len(HOSTS), rate=f"{RATES[0]}mbit") as made:
        for host, rate in zip(HOSTS, RATES, strict=True):
            if rate != RATES[0]:
                made.set_rate(f"{rate}mbit", link=host)
        yield made


def outputs_of(bed: Testbed, env: dict[str, str]) -> list[str]:
    """A line of each rank: the workers, a service beside each of them, and one on the last host."""
    places = [*HOSTS[:WORKERS], *HOSTS]
    env = {"WORLD_SIZE": str(WORKERS), "MLT_SERVICES": str(len(places) - WORKERS), **env}
    ranks = [
        bed.popen(
            host, python(WORKER if rank < WORKERS else SERVICE), env={**env, "RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank, host in enumerate(places)
    ]  # fmt: skip
    try:
        lines = []
        for one in ranks:
            out, err = one.communicate(timeout=60)
            assert one.returncode == 0, err
            lines.append(out.splitlines()[-1])
        return lines
    finally:
        for one in ranks:
            one.kill()
            one.communicate()


def test_plan__of_hosts_with_links_of_different_rates_is_what_each_service_sums(bed: Testbed, plan: Path) -> None:
    services = json.loads(plan.read_text(encoding="utf-8"))["jobs"][0]["assignment"]["services"]
    total = sum(one["load_bytes"] for one in services)
    planned = [one["load_bytes"] / total for one in services]
    assert planned[-1] > 1.5 * max(planned[:-1])  # not equal loads

    lines = outputs_of(bed, {"MLT_PLAN": str(plan)})

    for line in lines[:WORKERS]:
        assert json.loads(line) == pytest.approx(planned)
    pushed = WORKERS * STEPS * ELEMENTS * 4
    counters = [json.loads(line) for line in lines[WORKERS:]]
    # What arrives twice counts as received.
    repeated = [SEGMENT_BYTES * (one["duplicate_segments"] + one["stale_packets"]) for one in counters]
    summed = [(one["data_bytes_received"] - again) / pushed for one, again in zip(counters, repeated, strict=True)]
    assert summed == pytest.approx(planned, rel=0.02)
    # One partition or more of each service, in every step.
    for one, load in zip(counters, planned, strict=True):
        assert (one["summation_rounds"] > 0) == (load > 0)
        assert one["summation_rounds"] % STEPS == 0
