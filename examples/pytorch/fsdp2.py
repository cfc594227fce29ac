"""FSDP2: fine-tunes a small language model, whose parameters, gradients and optimiser state are divided among the
workers, on the text of Python's own documentation; then a checkpoint is written and read again.

    torchrun --nproc-per-node 2 --master-addr 127.0.0.1 --master-port 29500 examples/pytorch/fsdp2.py

BACKEND and BOUND may follow: ``fsdp2.py mlt 0.1`` lets each step miss up to a tenth of the gradients.

The model is that of the package textgenrnn: two LSTMs with attention, 465,000 weights, which predict the next character
of an English text and come trained on posts of a forum. Its weights are needed only, so leave out what it depends on:
pip install h5py; pip install --no-deps textgenrnn==2.0.0
"""

import json
import sys
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics

import h5py
import mlt.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

CONTEXT, CHARACTERS, WIDTH, HIDDEN = 40, 465, 100, 128


class LanguageModel(nn.Module):
    """Characters (batch, context) to the logits of the next one (batch, 465)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, WIDTH)
        self.rnn_1, self.rnn_2 = nn.LSTM(WIDTH, HIDDEN), nn.LSTM(HIDDEN, HIDDEN)
        self.attention = nn.Linear(WIDTH + 2 * HIDDEN, 1, bias=False)
        self.output = nn.Linear(WIDTH + 2 * HIDDEN, CHARACTERS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding(text.T)  # (context, batch, width)
        first, _ = self.rnn_1(embedded)
        second, _ = self.rnn_2(first)
        states = torch.cat([embedded, first, second], dim=2)
        logits: torch.Tensor = self.output((states * self.attention(states).softmax(dim=0)).sum(dim=0))
        return logits


def pretrained() -> tuple[LanguageModel, dict[str, int]]:
    """The model with its weights, and the number of each character."""
    package = find_spec("textgenrnn")
    if package is None or package.origin is None:
        sys.exit("fsdp2.py needs the weights of textgenrnn: pip install --no-deps textgenrnn==2.0.0")
    folder = Path(package.origin).parent
    with h5py.File(folder / "textgenrnn_weights.hdf5") as file:

        def values(layer: str, kind: str) -> torch.Tensor:
            return torch.from_numpy(file[f"{layer}/{layer}/{kind}:0"][()])

        weights = {
            "embedding.weight": values("embedding", "embeddings"),
            "attention.weight": values("attention", "attention_W").T,
            "output.weight": values("output", "kernel").T,
            "output.bias": values("output", "bias"),
        }
        for rnn in ("rnn_1", "rnn_2"):
            # Keras keeps cuDNN's memory: the inputs' matrix of each of the four gates is (units, inputs) in it.
            gates = values(rnn, "kernel").chunk(4, dim=1)
            weights[f"{rnn}.weight_ih_l0"] = torch.cat([gate.reshape(HIDDEN, -1) for gate in gates])
            weights[f"{rnn}.weight_hh_l0"] = torch.cat(values(rnn, "recurrent_kernel").chunk(4, dim=1))
            weights[f"{rnn}.bias_ih_l0"], weights[f"{rnn}.bias_hh_l0"] = values(rnn, "bias").chunk(2)
    model = LanguageModel()
    model.load_state_dict(weights)
    return model, json.loads((folder / "textgenrnn_vocab.json").read_text(encoding="utf-8"))


def main(backend: str = "mlt", bound: str = "0") -> None:
    dist.init_process_group(backend)  # "mlt" instead of "gloo"
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model, numbers = pretrained()
    for layer in (model.rnn_1, model.rnn_2):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if backend == "mlt":  # one more line, for gradients of which a part may be lost
        mlt.torch.LossyReduceScatter(loss_bound=float(bound)).set_on(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    text = torch.tensor([numbers.get(one, 0) for topic in topics.values() for one in topic])
    held_out, text = text[-2000:], text[:-2000]
    for step in range(41):
        if step % 10 == 0:
            with torch.no_grad():
                loss = loss_of(model, held_out, range(0, len(held_out) - CONTEXT, 20))
            if dist.get_rank() == 0:
                print(f"step {step}: loss {loss.item():.8f} of text that is not trained on")
        random = torch.Generator().manual_seed(1 + step * dist.get_world_size() + dist.get_rank())
        optimizer.zero_grad()
        loss_of(model, text, torch.randint(len(text) - CONTEXT, (64,), generator=random).tolist()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    save_and_load(model)
    dist.destroy_process_group()


def loss_of(model: nn.Module, text: torch.Tensor, starts: Iterable[int]) -> torch.Tensor:
    """The mean loss of the characters that follow these parts of a text."""
    windows = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
    return nn.functional.cross_entropy(model(windows[:, :-1]), windows[:, -1])


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
