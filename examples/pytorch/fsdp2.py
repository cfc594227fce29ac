"""FSDP2: a small language model of bytes, whose parameters, gradients and optimiser state are divided among the
workers, learns the source text of a module of Python's library; then a checkpoint is written and read again.

    torchrun --nproc-per-node 2 --master-addr 127.0.0.1 --master-port 29500 examples/pytorch/fsdp2.py

BACKEND and BOUND may follow: ``fsdp2.py mlt 0.1`` lets each step miss up to a tenth of the gradients.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import mlt.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

CONTEXT, WIDTH, HEADS, LAYERS, BYTES = 32, 32, 2, 2, 256


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer: (batch, context, width) to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_forward = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.forward_layer = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        y = self.before_attention(x)
        x = x + self.attention(y, y, y, attn_mask=mask, is_causal=True, need_weights=False)[0]
        result: torch.Tensor = x + self.forward_layer(self.before_forward(x))
        return result


class LanguageModel(nn.Module):
    """Bytes (batch, context) to the logits of the next byte (batch, context, 256)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(BYTES, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, BYTES)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.embedding(text) + self.position(torch.arange(text.shape[1]))
        logits: torch.Tensor = self.head(self.blocks(x))
        return logits


def main(backend: str = "mlt", bound: str = "0") -> None:
    dist.init_process_group(backend)  # "mlt" instead of "gloo"
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = LanguageModel()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if backend == "mlt":  # one more line, for gradients of which a part may be lost
        mlt.torch.LossyReduceScatter(loss_bound=float(bound)).set_on(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
    torch.manual_seed(1 + dist.get_rank())
    for step in range(1, 31):
        starts = torch.randint(len(text) - CONTEXT - 1, (8,))
        batch = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.8f}")
    save_and_load(model)
    dist.destroy_process_group()


def save_and_load(model: nn.Module) -> None:
    """Each worker writes its part; what is read again must be the same."""
    folders = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folders)
    before = get_model_state_dict(model)
    checkpoint.save(before, checkpoint_id=folders[0])
    after = {name: torch.zeros_like(value) for name, value in before.items()}
    checkpoint.load(after, checkpoint_id=folders[0])
    for name, value in before.items():
        assert torch.equal(value.full_tensor(), after[name].full_tensor()), name
    if dist.get_rank() == 0:
        print(f"checkpoint: {len(before)} tensors read again")


if __name__ == "__main__":
    main(*sys.argv[1:])
