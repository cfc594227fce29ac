"""Lightning: the backend is an argument of the strategy. Lightning starts the second worker itself:

python examples/pytorch/lightning_ddp.py

Its libraries are mlt's extra ``recipes``: pip install '.[recipes]' in the checkout.
"""

import sys

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    """A small network that learns a linear map of 20 values to one."""

    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.network(inputs), targets)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self) -> None:
        if self.global_rank == 0:
            print(f"epoch {self.current_epoch + 1}: loss {self.trainer.callback_metrics['loss'].item():.8f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main(backend: str = "mlt") -> None:
    lightning.seed_everything(0, verbose=False)
    x = torch.randn(1024, 20)
    batches = DataLoader(TensorDataset(x, x @ torch.randn(20, 1)), batch_size=32)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend=backend),  # "mlt" instead of "gloo"
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(), batches)


if __name__ == "__main__":
    main(*sys.argv[1:])
