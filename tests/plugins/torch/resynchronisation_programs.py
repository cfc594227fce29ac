"""The programs of ``test_resynchronisation.py``; ``job.run_job`` runs one of them per process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import programs
from programs import RANK, SERVICES, network

import mlt


def digest_of(tensors: Iterable[Any]) -> str:
    import torch

    data = b"".join(one.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for one in tensors)
    return hashlib.sha256(data).hexdigest()


def drift(context: mlt.Context, options: dict[str, Any]) -> Any:
    """Trains with lossy results; answers digests of the parameters, drifts, and what ``verify_replicas`` says."""
    import mlt.torch
    import torch
    import torch.distributed as dist

    # Long enough for a ring; a norm of layers, because those of batches keep other statistics on each rank.
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 512), torch.nn.LayerNorm(512), torch.nn.ReLU(), torch.nn.Linear(512, 256)
    )
    replica = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.05, momentum=0.9)
    state = mlt.torch.BoundedLossState(
        mlt.PushPull(context) if SERVICES else None, loss_bound=options["bound"], lossy_results=True
    )
    replica.register_comm_hook(state, mlt.torch.bounded_loss_hook)
    apart: list[float] = []

    def note_distance() -> None:
        own = torch.cat([one.detach().reshape(-1) for one in model.parameters()])
        everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, own)
        stacked = torch.stack(everyone)
        apart.append(float((stacked.amax(0) - stacked.amin(0)).max()))

    def before_resynchronisation(*_: object) -> None:
        if len(digests) > 0 and len(digests) % options["every"] == 0:
            note_distance()

    digests: list[str] = []  # of each step
    replica.register_forward_pre_hook(before_resynchronisation)  # before that of the state
    state.resynchronise_every(options["every"], replica, optimizer, by=options["by"])
    before_step: dict[int, str] = {}
    replica.register_forward_pre_hook(lambda *_: before_step.update({len(digests): digest_of(model.parameters())}))
    torch.manual_seed(100 + RANK)
    for _ in range(options["steps"]):
        optimizer.zero_grad()
        replica(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        digests.append(digest_of(model.parameters()))
    try:
        mlt.torch.verify_replicas(replica)
        refused = ""
    except RuntimeError as error:
        refused = str(error)
    note_distance()
    state.resynchronise()
    mlt.torch.verify_replicas(replica)
    return {
        "digests": digests,
        "before_step": before_step,
        "drifts": [(one.step, one.greatest, one.relative) for one in state.drifts],
        "apart": apart,
        "statistics": {one.step: one.drift for one in state.steps if one.drift is not None},
        "loss": max(one.loss_fraction for one in state.steps),
        "refused": refused,
        "verified": True,
        "final": digest_of(model.parameters()),
        "final_state": digest_of(optimizer.state[one]["momentum_buffer"] for one in model.parameters()),
    }


def unsynchronised(context: mlt.Context, options: dict[str, Any]) -> Any:
    """A backward pass with lossy results and without re-synchronisation; answers its error."""
    import mlt.torch
    import torch

    replica = torch.nn.parallel.DistributedDataParallel(network(seed=0))
    replica.register_comm_hook(mlt.torch.BoundedLossState(lossy_results=True), mlt.torch.bounded_loss_hook)
    try:
        replica(torch.randn(16, 64)).square().mean().backward()
    except RuntimeError as error:
        return str(error)
    return ""


def other_model(context: mlt.Context, options: dict[str, Any]) -> Any:
    """The hook on another model than the one that is re-synchronised; answers its error."""
    import mlt.torch
    import torch

    replicas = [torch.nn.parallel.DistributedDataParallel(network(seed=0)) for _ in range(2)]
    state = mlt.torch.BoundedLossState(lossy_results=True)
    state.resynchronise_every(10, replicas[0])
    replicas[1].register_comm_hook(state, mlt.torch.bounded_loss_hook)
    try:
        replicas[1](torch.randn(16, 64)).square().mean().backward()
    except RuntimeError as error:
        return str(error)
    return ""


def never_forward(context: mlt.Context, options: dict[str, Any]) -> Any:
    """Trains in evaluation mode, in which nothing is re-synchronised; answers the error, and steps until then."""
    import mlt.torch
    import torch

    replica = torch.nn.parallel.DistributedDataParallel(network(seed=0)).eval()
    state = mlt.torch.BoundedLossState(lossy_results=True)
    state.resynchronise_every(2, replica)
    replica.register_comm_hook(state, mlt.torch.bounded_loss_hook)
    for step in range(9):
        try:
            replica(torch.randn(16, 64)).square().mean().backward()
        except RuntimeError as error:
            return str(error), step
    return "", 9


def joined(context: mlt.Context, options: dict[str, Any]) -> Any:
    """A re-synchronisation that is due within ``join()``; answers its error."""
    import mlt.torch
    import torch

    replica = torch.nn.parallel.DistributedDataParallel(network(seed=0))
    state = mlt.torch.BoundedLossState(lossy_results=True)
    state.resynchronise_every(1, replica)
    replica.register_comm_hook(state, mlt.torch.bounded_loss_hook)
    try:
        with replica.join():
            for _ in range(2):
                replica(torch.randn(16, 64)).square().mean().backward()
    except RuntimeError as error:
        return str(error)
    return ""


programs.PROGRAMS.update(
    {
        "drift": drift,
        "joined": joined,
        "never_forward": never_forward,
        "other_model": other_model,
        "unsynchronised": unsynchronised,
    }
)

if __name__ == "__main__":
    programs.main()
