"""The effect of rotating gradients when segments are lost, and its cost: a table for docs/pytorch.md.

    python tests/bench/rotation.py

One worker's gradient of 4 MiB loses segments of 358 float32 as an Ethernet's packets, either at random or those with
the smallest sums of magnitudes first; what is lost is 0. Errors are relative to the gradient's norm. A row is 256
elements.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from mlt.torch.rotation import restore, rotate

ELEMENTS, SEGMENT, ROW = 1 << 20, 358, 256


def gradients() -> Iterator[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    normal = torch.randn(ELEMENTS, generator=generator)
    yield "normal", normal
    yield "heavy tails (cubes of normal)", normal**3
    rows = torch.rand(ELEMENTS // ROW, generator=generator) < 0.05
    yield "5 % of the rows are not 0", normal * rows.repeat_interleave(ROW)


def kept(sent: torch.Tensor, loss: float, by_magnitude: bool) -> torch.Tensor:
    """1 where it arrives."""
    segments = -(-len(sent) // SEGMENT)
    if by_magnitude:
        sums = torch.nn.functional.pad(sent.abs(), (0, segments * SEGMENT - len(sent))).view(-1, SEGMENT).sum(1)
        order = sums.argsort()
    else:
        order = torch.randperm(segments, generator=torch.Generator().manual_seed(2))
    arrives = torch.ones(segments)
    arrives[order[: round(loss * segments)]] = 0
    return arrives.repeat_interleave(SEGMENT)[: len(sent)]


def errors(gradient: torch.Tensor, loss: float, by_magnitude: bool, rotated: bool) -> tuple[float, float]:
    """Error of the whole, and the share of the rows that are not 0 that lost more than half of their norm."""
    sent = gradient.clone()
    if rotated:
        rotate(sent, 3)
    sent *= kept(sent, loss, by_magnitude)
    if rotated:
        restore(sent, 3)
    difference, rows = (sent - gradient).view(-1, ROW).norm(dim=1), gradient.view(-1, ROW).norm(dim=1)
    is_hit = difference[rows > 0] > rows[rows > 0] / 2
    return float(difference.norm() / rows.norm()), float(is_hit.float().mean())


def main() -> None:
    torch.set_num_threads(1)
    print("| gradient | loss | lost | error: as it is | rotated | rows that lost over half: as it is | rotated |")
    print("|---|---|---|---|---|---|---|")
    for name, gradient in gradients():
        for loss in (0.01, 0.1):
            for by_magnitude in (False, True):
                plain, rotated = (errors(gradient, loss, by_magnitude, each) for each in (False, True))
                how = "smallest first" if by_magnitude else "at random"
                shares = plain[0], rotated[0], plain[1], rotated[1]
                cells = [name, f"{100 * loss:.0f} %", how, *(f"{100 * share:.1f} %" for share in shares)]
                print(f"| {' | '.join(cells)} |")
    for dtype in (torch.float32, torch.float64):
        tensor = torch.randn(ELEMENTS, dtype=dtype)
        best = float("inf")
        for _ in range(5):
            began = time.thread_time()
            rotate(tensor, 1)
            restore(tensor, 1)
            best = min(best, time.thread_time() - began)
        print(f"rotate and restore 4 Mi bytes of {dtype}: {best * 1e3 * (4 << 20) / tensor.nbytes:.1f} ms of one core")


if __name__ == "__main__":
    main()
