"""Ray Train: DistributedDataParallel in two of Ray's workers. What differs from gloo is ``TorchConfig(backend="mlt")``.

python examples/pytorch/ray_train.py

Its libraries are mlt's extra ``recipes-ray``: pip install '.[recipes-ray]' in the checkout.
"""

import sys
import tempfile
from pathlib import Path

import ray
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig, get_context, report
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def train() -> None:
    """Runs in each worker, whose process group Ray has made."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    weights = torch.randn(20, 1)
    replica = prepare_model(model)  # DistributedDataParallel
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.05)
    rank = get_context().get_world_rank()
    torch.manual_seed(1 + rank)
    losses = {}
    for step in range(1, 101):
        x = torch.randn(32, 20)
        loss = torch.nn.functional.mse_loss(replica(x), x @ weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            losses[step] = loss.item()
    with tempfile.TemporaryDirectory() as folder:
        if rank == 0:
            torch.save(model.state_dict(), Path(folder) / "model.pt")
        report({"losses": losses}, checkpoint=Checkpoint.from_directory(folder) if rank == 0 else None)


def main(backend: str = "mlt") -> None:
    ray.init(num_cpus=2, include_dashboard=False)
    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer(
            train,
            torch_config=TorchConfig(backend=backend),  # "mlt" instead of "gloo"
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=folder),
        )
        result = trainer.fit()
        for step, loss in result.metrics["losses"].items():
            print(f"step {step}: loss {loss:.8f}")
        state = torch.load(Path(result.checkpoint.path) / "model.pt")
        print(f"checkpoint: {sum(tensor.sum().item() for tensor in state.values()):.8f}")
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
