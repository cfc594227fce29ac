"""DeepSpeed's ZeRO, one stage after another: its optimizer's state, the gradients and the parameters are divided.

torchrun --nproc-per-node 2 --master-addr 127.0.0.1 --master-port 29500 examples/pytorch/deepspeed_zero.py

Its libraries are mlt's extra ``recipes``: pip install '.[recipes]' in the checkout.
"""

import sys

import deepspeed
import torch

# What DeepSpeed would compile for a minute on a CPU: an all-reduce in shared memory, which training does not use.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def train(stage: int, steps: int = 40) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    weights = torch.randn(20, 1)
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 16,
            "gradient_accumulation_steps": 2,
            "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
            # 0: stage 3 divides parameters this small as well.
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        },
    )
    torch.manual_seed(1 + engine.global_rank)
    for step in range(1, steps + 1):
        total = 0.0
        for _ in range(engine.gradient_accumulation_steps()):
            x = torch.randn(16, 20)
            loss = torch.nn.functional.mse_loss(engine(x), x @ weights)
            engine.backward(loss)
            engine.step()
            total += loss.item()
        if step % 20 == 0 and engine.global_rank == 0:
            print(f"stage {stage}, step {step}: loss {total / 2:.8f}")
    engine.destroy()


def main(backend: str = "mlt") -> None:
    deepspeed.init_distributed(dist_backend=backend)  # "mlt" instead of "gloo"
    for stage in (1, 2, 3):
        train(stage)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
