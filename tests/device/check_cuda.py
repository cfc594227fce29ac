"""Checks mlt on a machine with a GPU: collectives on CUDA tensors, DDP, FSDP2, and all-reduce times beside gloo.

    python tests/device/check_cuda.py [--output FILE]

The ranks share the first GPU. Training loses a fiftieth of mlt's packets, injected. Needs mlt and torch with CUDA;
exits with 2 where there is no GPU, with 1 on any failure.
Not part of ``make test``, which runs the same checks on a stand-in (tests/plugins/torch/stand_in.py).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "plugins" / "torch")]
LIMIT_SECONDS = 60
SIZES = {"4 B": 4, "64 KiB": 64 << 10, "1 MiB": 1 << 20, "25 MiB": 25 << 20, "100 MiB": 100 << 20}


class CudaLab:
    """The first GPU, for device_checks."""

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.full(shape, 3, dtype=dtype, device="cuda")

    def fill_late(self, tensor: torch.Tensor, value: float) -> None:
        torch.cuda._sleep(5_000_000)  # cycles: some milliseconds
        tensor.fill_(value)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().cpu()


def collectives(backend: str) -> Any:
    from device_checks import all_checks

    return all_checks(CudaLab())


def train(model: torch.nn.Module, replica: torch.nn.Module) -> str:
    """A digest of the parameters after ten steps, which must be that of every rank."""
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.01)
    torch.manual_seed(2 + dist.get_rank())
    for _ in range(10):
        optimizer.zero_grad()
        replica(torch.randn(64, 512, device="cuda")).square().mean().backward()
        optimizer.step()
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    data = b"".join(p.detach().cpu().numpy().tobytes() for p in whole)
    digests: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(digests, hashlib.sha256(data).hexdigest()[:16])
    assert len(set(digests)) == 1, digests
    return str(digests[0])


def network() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)).cuda()


def ddp(backend: str) -> Any:
    """Digests of a model trained on the GPU: without a hook, and with mlt's at a bound of 0 and of 10 %."""
    found: dict[str, Any] = {}
    for name in ("plain", "hook", "lossy") if backend == "mlt" else ("plain",):
        model = network()
        replica = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0], bucket_cap_mb=1)
        if name != "plain":
            import mlt.torch

            state = mlt.torch.BoundedLossState(dist.group.WORLD, loss_bound=0.1 if name == "lossy" else 0.0)
            replica.register_comm_hook(state, mlt.torch.bounded_loss_hook)
        found[name] = train(model, replica)
        if name == "lossy":
            found["missing bytes"] = sum(step.missing_bytes for step in state.steps)
    return found


def fsdp(backend: str) -> Any:
    """The same of a model that FSDP2 has sharded, with ``LossyReduceScatter``."""
    import mlt.torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    found: dict[str, Any] = {}
    for name in ("plain", "hook", "lossy"):
        model = network()
        for module in (model[0], model[2], model):
            fully_shard(module, mesh=mesh)
        reduce_scatter = mlt.torch.LossyReduceScatter(loss_bound=0.1 if name == "lossy" else 0.0)
        if name != "plain":
            reduce_scatter.set_on(model)
        found[name] = train(model, model)
        if name == "lossy":
            found["missing bytes"] = sum(step.missing_bytes for step in reduce_scatter.steps)
    return found


def times(backend: str) -> Any:
    """Median milliseconds of an all-reduce that the next kernel waits for."""
    found = {}
    for name, size in SIZES.items():
        x = torch.ones(max(size // 4, 1), device="cuda")
        taken = []
        for _ in range(33 if size <= 1 << 20 else 13):
            torch.cuda.synchronize()
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(x)
            torch.cuda.synchronize()
            taken.append(time.perf_counter() - began)
            x.fill_(1)
        found[name] = round(1e3 * statistics.median(taken[3:]), 4)
    return found


PARTS = {"collectives": collectives, "ddp": ddp, "fsdp": fsdp, "times": times}


def worker(part: str, backend: str) -> None:
    torch.cuda.set_device(0)
    torch.set_num_threads(1)
    with contextlib.ExitStack() as left:
        if backend == "mlt" and part in ("ddp", "fsdp"):
            import mlt.torch

            import mlt

            faults = mlt.Faults(drop=0.02, seed=1 + int(os.environ["RANK"]))
            mlt.torch.use_context(left.enter_context(mlt.Context(faults=faults)))
        dist.init_process_group(backend)
        print(json.dumps(PARTS[part](backend)), flush=True)
        dist.destroy_process_group()


def job(part: str, backend: str, ranks: int) -> Any:
    """The answer of rank 0; raises RuntimeError with the outputs if a rank failed or did not end."""
    from mlt._shared.ports import free_port

    environment = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    environment["MASTER_PORT"] = str(free_port("127.0.0.1"))
    command = [sys.executable, __file__, "--worker", part, "--backend", backend]
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / str(rank) for rank in range(ranks)]
        processes = []
        for rank, output in enumerate(outputs):
            with output.open("w") as file:
                own = {**environment, "RANK": str(rank)}
                processes.append(subprocess.Popen(command, env=own, stdout=file, stderr=subprocess.STDOUT))
        deadline = time.monotonic() + LIMIT_SECONDS
        for process in processes:
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
        texts = [output.read_text() for output in outputs]
    for process in processes:
        process.wait()
    if any(process.returncode for process in processes):
        ended = "\n".join(
            f"rank {rank} ended with {process.returncode}:\n{text[-3000:]}"
            for rank, (process, text) in enumerate(zip(processes, texts, strict=True))
        )
        raise RuntimeError(f"{part} over {backend}, {ranks} ranks: {ended}")
    return json.loads(texts[0].splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the results as JSON here")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="leave out the others")
    parser.add_argument("--worker", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--backend", default="mlt", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.backend)
        return 0
    if not torch.cuda.is_available():
        print("check_cuda: this machine has no GPU that torch can use", file=sys.stderr)
        return 2
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__}
    failed = 0
    for part, backend, ranks in [
        ("collectives", "mlt", 2),
        ("collectives", "mlt", 4),
        ("ddp", "mlt", 2),
        ("ddp", "gloo", 2),
        ("ddp", "mlt", 4),
        ("fsdp", "mlt", 2),
        ("fsdp", "mlt", 4),
        *[("times", backend, ranks) for ranks in (2, 4) for _ in range(2) for backend in ("mlt", "gloo")],
    ]:
        if part not in options.parts:
            continue
        began = time.monotonic()
        try:
            answer = job(part, backend, ranks)
        except RuntimeError as error:
            failed += 1
            answer = f"FAILED: {error}"
        print(f"{part} {backend} {ranks} ranks, {time.monotonic() - began:.1f} s: {answer}", flush=True)
        found.setdefault(f"{part} {backend} {ranks}", []).append(answer)
        if options.output:
            options.output.write_text(json.dumps(found, indent=1))
    if not failed and "ddp" in options.parts and found["ddp mlt 2"][0]["plain"] != found["ddp gloo 2"][0]["plain"]:
        failed += 1
        print("DDP: mlt's parameters are not gloo's")
    for case in ("ddp mlt 2", "ddp mlt 4", "fsdp mlt 2", "fsdp mlt 4"):
        (told,) = found.get(case, [None])
        if not isinstance(told, dict):
            continue
        # Above two ranks the order of a sum's terms depends on where it is cut: DDP's all-reduce of a GPU's bucket is
        # cut in pieces, the hook's is not.
        is_exact = told["plain"] == told["hook"] or case == "ddp mlt 4"
        if not is_exact or told["lossy"] == told["hook"] or told["missing bytes"] == 0:
            failed += 1
            print(f"{case}: a bound of 0 is not exact, or one of 10 % loses nothing: {told}")
    print(f"check_cuda: {failed} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
