"""The training script that ``tools/torch_speed`` times: one worker of DDP or FSDP2, as its environment says.

    train.py BACKEND BOUND MODEL TRAINER STEPS        BOUND "none": exact; TRAINER: ddp or fsdp2

MODEL is a key of ``torch_models.MODELS``. The last line of its output is JSON: the times of the steps after the first
three, and the gradients' bytes.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from torch_models import MODELS

WARM_UP = 3


def replicated(network: torch.nn.Module, bound: str) -> torch.nn.Module:
    replica = DistributedDataParallel(network)
    if bound != "none":
        import mlt.torch

        # Services where there are any, also where the workers would be faster among themselves.
        services = int(os.environ.get("MLT_SERVICES", "0")) > 0
        state = mlt.torch.BoundedLossState(loss_bound=float(bound), services=services)
        replica.register_comm_hook(state, mlt.torch.bounded_loss_hook)
    return replica


def sharded(network: torch.nn.Module, bound: str) -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    # The last layer is sharded with the whole.
    *layers, _ = [module for module in network.children() if any(True for _ in module.parameters())]
    for module in (*layers, network):
        fully_shard(module, mesh=mesh)
    if bound != "none":
        import mlt.torch

        mlt.torch.LossyReduceScatter(loss_bound=float(bound)).set_on(network)
    return network


def whole(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def main(backend: str, bound: str, model: str, trainer: str, steps: int) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    torch.manual_seed(0)
    network = MODELS[model].make()
    gradients = 4 * sum(parameter.numel() for parameter in network.parameters())
    replica = sharded(network, bound) if trainer == "fsdp2" else replicated(network, bound)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.01)
    torch.manual_seed(1 + dist.get_rank())
    seconds = []
    for _ in range(WARM_UP + steps):
        batch = MODELS[model].samples()
        start = time.perf_counter()
        optimizer.zero_grad()
        replica(batch).square().mean().backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    digest = sum(whole(parameter).double().sum().item() for parameter in network.parameters())
    digests = [torch.zeros(1, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(digests, torch.tensor([digest], dtype=torch.float64))
    assert all(one.item() == digest for one in digests), "the replicas differ"
    dist.destroy_process_group()
    print(json.dumps({"seconds": seconds[WARM_UP:], "bytes": gradients, "rank": int(os.environ["RANK"])}), flush=True)
    os._exit(0)  # gloo's threads sometimes abort a process that ends in the ordinary way


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
