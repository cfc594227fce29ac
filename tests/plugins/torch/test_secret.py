"""The process group hands a job's secret over through torch's store."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import pytest
import warm_python
from checks import assert_names
from job import MODULES

pytest.importorskip("torch")
from mlt._shared.ports import free_port_pair

PROGRAM = """
import hashlib, json, warnings
import mlt.torch, torch, torch.distributed as dist
from mlt.torch import current_context
warnings.simplefilter("ignore")
dist.init_process_group("mlt")
secret = current_context().config.secret
tensor = torch.ones(10) * (dist.get_rank() + 1)
dist.all_reduce(tensor)
print(json.dumps([tensor[0].item(), secret and hashlib.sha256(secret.reveal()).hexdigest()]), flush=True)
dist.destroy_process_group()
"""

# The default group three times over one store, as torchrun keeps it for the life of the workers; rank 0 is the last to
# make its group.
AGAIN = """
import datetime, json, os, time, warnings
import mlt.torch, torch, torch.distributed as dist
warnings.simplefilter("ignore")
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = dist.TCPStore(*address, size, rank == 0, timeout=datetime.timedelta(seconds=30))
sums = []
for turn in range(3):
    time.sleep(0.5 * turn if rank == 0 else 0)
    dist.init_process_group("mlt", store=store, rank=rank, world_size=size)
    tensor = torch.ones(10) * (rank + 1)
    dist.all_reduce(tensor)
    sums.append(tensor[0].item())
    dist.destroy_process_group()
store.add("left", 1)
while rank == 0 and store.add("left", 0) < size:
    time.sleep(0.01)
print(json.dumps(sums), flush=True)
"""


def run(*own: dict[str, str], program: str = PROGRAM) -> list[tuple[int, Any, str]]:
    """Exit status, answer and errors of each rank, given what is its own in its environment."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MLT_")}
    shared = {"WORLD_SIZE": str(len(own)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port_pair())}
    processes = [
        warm_python.start(
            MODULES, ["-c", program], env={**inherited, **shared, "RANK": str(rank), **more}, errors_apart=True
        )
        for rank, more in enumerate(own)
    ]
    ended: list[tuple[int, Any, str]] = []
    for process in reversed(processes):  # rank 0 would wait for the others until its time is up
        if any(status for status, _, _ in ended):
            process.kill()
        output, errors = process.communicate(timeout=100)
        ended.append((process.returncode, json.loads(output) if output else None, errors))
    return ended[::-1]


def test_process_group__makes_a_new_secret_and_every_rank_has_it() -> None:
    first, second = run({}, {}), run({}, {})
    digests = []
    for job in (first, second):
        assert [status for status, _, _ in job] == [0, 0], job
        assert [answer[0] for _, answer, _ in job] == [3.0, 3.0]
        (digest,) = {answer[1] for _, answer, _ in job}
        digests.append(digest)
    assert None not in digests
    assert digests[0] != digests[1]


def test_process_group__a_secret_of_the_environment_goes_first() -> None:
    own = {"MLT_JOB_SECRET": "one that all of them have"}
    (_, one, _), (_, other, _) = run(own, own)
    assert one == other
    assert one[1] == hashlib.sha256(b"one that all of them have").hexdigest()


def test_process_group__a_rank_without_rank_0s_secret_does_not_join() -> None:
    (_, _, _), (status, answer, errors) = run({"MLT_JOB_SECRET": "one that rank 0 alone has"}, {})
    assert status != 0
    assert answer is None
    assert_names(errors, "secret", "has none")


def test_process_group__made_again_over_the_same_store_has_one_secret() -> None:
    job = run({}, {}, program=AGAIN)
    assert [(status, answer) for status, answer, _ in job] == [(0, [3.0] * 3)] * 2, job
