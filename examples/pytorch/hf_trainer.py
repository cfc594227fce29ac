"""Hugging Face Trainer: a small GPT-2, from scratch, learns the bytes of a module of Python's library. The Trainer
takes the process group that is there: one line more.

    torchrun --nproc-per-node 2 --master-addr 127.0.0.1 --master-port 29500 examples/pytorch/hf_trainer.py

Its libraries are mlt's extra ``recipes``: pip install '.[recipes]' in the checkout.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

CONTEXT = 64


def main(backend: str = "mlt") -> None:
    dist.init_process_group(backend)  # this line is new
    torch.manual_seed(0)
    text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
    pieces = text[: len(text) // CONTEXT * CONTEXT].reshape(-1, CONTEXT)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            ddp_find_unused_parameters=False,
            max_steps=20,
            per_device_train_batch_size=8,
            learning_rate=3e-3,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
        )
        trainer = Trainer(model, settings, train_dataset=[{"input_ids": one, "labels": one} for one in pieces])
        trained = trainer.train()
    if dist.get_rank() == 0:
        print(f"step {trained.global_step}: loss {trained.training_loss:.8f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
