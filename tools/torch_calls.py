"""Calls of torch.distributed between ranks of one host, over gloo, over mlt and over no network, in turns.

    python tools/torch_calls.py                       # everything, three minutes; writes docs/results/torch-calls.md
    python tools/torch_calls.py --verbs gather,scatter --ranks 2 --seconds 1.0 --no-page

Milliseconds of one call, of the slowest rank: from a barrier to the end of ten calls in a row (gather, scatter: of
one), the median. A size is that of each tensor of the list. "ddp" is the step of a DistributedDataParallel whose
gradients are 80 buckets of this size. "Nothing" is torch's own backend "fake", whose calls do nothing: what torch
itself costs. ``--seconds``: time of each cell and backend.

No ``from __future__ import annotations`` here: DDP compares a hook's annotations with the real types.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed import fake_pg  # noqa: F401  # registers the backend "fake"

from mlt._shared.units import SIZE

SIZES = {
    "all_reduce": ("4B", "64KiB", "1MiB", "25MiB"),
    "ddp": ("4KiB",),
    **dict.fromkeys(("gather", "scatter", "all_gather", "reduce_scatter", "all_to_all"), ("4B", "64KiB", "1MiB")),
}
VERBS = {"auto": tuple(SIZES), "udp": ("all_reduce", "ddp")}  # by datapath
BACKENDS = {"gloo": "gloo", "mlt": "mlt", "nothing": "fake"}
PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "torch-calls.md"
BUCKETS = 80
# Calls after a barrier, which would cost as much as a short call. After a rooted call not all ranks wait for all.
IN_A_ROW = 10
ONCE = {"gather": 1, "scatter": 1}
_WARM_UP = 2
_MIN_CALLS = 5
_MAX_CALLS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4", help="sizes of the group (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.4, help="of each cell and backend (default: %(default)s)")
    parser.add_argument("--sizes", help="of every verb, instead of its own")
    parser.add_argument("--verbs", help="(default: all; over UDP all_reduce and ddp)")
    parser.add_argument("--datapaths", default="auto,udp", help="of mlt; auto: shared memory (default: %(default)s)")
    parser.add_argument("--no-page", action="store_true", help="print the tables only")
    options = parser.parse_args()
    if "RANK" in os.environ:
        rank_main(options)
        return
    datapaths = options.datapaths.split(",")
    parts = [tables_of(size, datapath) for datapath in datapaths for size in options.ranks.split(",")]
    if not options.no_page:
        PAGE.write_text(page(parts))


def tables_of(size: str, datapath: str) -> str:
    """Returns what rank 0 of a job of this size printed, which is shown as it comes."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "CALLS_STORE": os.path.join(folder, "store"), "WORLD_SIZE": size}
        env |= {"MLT_DATAPATH": datapath, "MLT_INTERFACE": "lo", "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, *sys.argv]
        ranks = [
            subprocess.Popen(command, env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
            for rank in range(int(size))
        ]
        lines = []
        for line in ranks[0].stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
        if sum(rank.wait() != 0 for rank in ranks):
            sys.exit("a rank failed")
    return "".join(lines)


def page(parts: Sequence[str]) -> str:
    command = "make torch-calls" + (f' CALLS_ARGS="{" ".join(sys.argv[1:])}"' if len(sys.argv) > 1 else "")
    tables = "".join(parts)
    return f"""# Calls of torch.distributed on one host

Made by `{command}` on {datetime.now(timezone.utc).date()}, on a machine
with 2 shared cores that the ranks share. Milliseconds of one call of the slowest rank: from a barrier to the end of
{IN_A_ROW} calls in a row (gather, scatter: of one), the median; then the next backend has its turn. A size is that of
each tensor of a list. "ddp" is the step of a
DistributedDataParallel whose gradients are {BUCKETS} buckets of this size. "Nothing" is torch's backend "fake", whose
calls do nothing: what torch itself costs. gloo uses TCP on loopback; mlt shared memory, as it does by itself between
ranks of one host, and UDP on loopback where the title says so (`MLT_DATAPATH=udp`).
{tables}"""


def rank_main(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{os.environ['CALLS_STORE']}", rank=rank, world_size=size)
    groups = {name: dist.new_group(backend=backend) for name, backend in BACKENDS.items()}
    if rank == 0:
        head = "| call | size | gloo | mlt | nothing | mlt / gloo |"
        over = "UDP" if os.environ["MLT_DATAPATH"] == "udp" else "shared memory"
        print(f"\n## {size} ranks, mlt over {over}\n\n{head}\n|---|---|---|---|---|---|", flush=True)
    for verb in options.verbs.split(",") if options.verbs else VERBS[os.environ["MLT_DATAPATH"]]:
        for name in SIZES[verb] if options.sizes is None else options.sizes.split(","):
            calls = {
                backend: call_of(verb, round(SIZE.named("size", name)) // 4, group) for backend, group in groups.items()
            }
            found = measure(calls, options.seconds, ONCE.get(verb, IN_A_ROW))
            if rank == 0:
                gloo, mlt, nothing = (1e3 * found[backend] for backend in BACKENDS)
                times = f"{gloo:.3f} | {mlt:.3f} | {nothing:.3f}"
                print(f"| {verb} | {name} | {times} | {mlt / gloo:.2f} |", flush=True)
    dist.destroy_process_group()


def call_of(verb: str, elements: int, group: dist.ProcessGroup | None) -> Callable[[], object]:
    """The call of one verb with tensors of that size."""
    if verb == "ddp":
        return ddp_step(elements, group)
    rank, size = dist.get_rank(), dist.get_world_size()
    one, many = torch.full((elements,), float(rank)), [torch.ones(elements) for _ in range(size)]
    arrived = [torch.zeros(elements) for _ in range(size)]
    root = rank == 0
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(one, group=group),
        "gather": lambda: dist.gather(one, arrived if root else None, 0, group=group),
        "scatter": lambda: dist.scatter(one, many if root else None, 0, group=group),
        "all_gather": lambda: dist.all_gather(arrived, one, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter(one, many, group=group),
        "all_to_all": lambda: dist.all_to_all(arrived, many, group=group),
    }
    return calls[verb]


def leave_as_is(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook that does nothing."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def ddp_step(elements: int, group: dist.ProcessGroup | None) -> Callable[[], object]:
    """The backward pass of a model with 80 parameters, each a bucket of its own."""

    class Parameters(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.all = torch.nn.ParameterList(torch.zeros(elements) for _ in range(BUCKETS))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([(parameter * x).sum() for parameter in self.all]).sum()

    model = DistributedDataParallel(Parameters(), process_group=group, bucket_cap_mb=4 * elements / 2**20)
    if dist.get_backend(group) == "fake":  # its calls have no future that DDP understands
        model.register_comm_hook(None, leave_as_is)
    return lambda: model(torch.ones(elements)).backward()


def measure(calls: dict[str, Callable[[], object]], seconds: float, in_a_row: int) -> dict[str, float]:
    """Median seconds of each backend's call, of the slowest rank; the backends take turns, ``in_a_row`` calls each."""
    found: dict[str, list[float]] = {backend: [] for backend in calls}
    spent = 0.0
    for turn in range(_WARM_UP + 1):  # the last turn says how many calls the time is enough for
        for call in calls.values():
            dist.barrier()
            began = time.perf_counter()
            call()
            if turn == _WARM_UP:
                spent += in_a_row * (time.perf_counter() - began)
    count = torch.tensor([float(min(max(len(calls) * seconds / spent, _MIN_CALLS), _MAX_CALLS))])
    dist.all_reduce(count, op=dist.ReduceOp.MIN)
    for _ in range(int(count)):
        for backend, call in calls.items():
            dist.barrier()
            began = time.perf_counter()
            for _ in range(in_a_row):
                call()
            found[backend].append((time.perf_counter() - began) / in_a_row)
    times = torch.tensor([list(one) for one in found.values()])
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return {backend: statistics.median(row.tolist()) for backend, row in zip(calls, times, strict=True)}


if __name__ == "__main__":
    main()
