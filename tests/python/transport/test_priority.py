"""Built-in priority functions, and the bytes their answers become."""

from __future__ import annotations

import numpy as np
import pytest

import mlt
from mlt import priority

GRID = mlt.SegmentGrid(segment_count=4, segment_elements=100, elements=350, dtype="float32", traffic_class=2)


def test_magnitude__marks_the_segments_with_large_values() -> None:
    tensor = np.full(350, 0.1, np.float32)
    tensor[100:200] = -5
    tensor[300:] = 7
    priorities = priority.magnitude(tensor, GRID)
    # The median of the sample is 0.1: at or above it means important.
    assert priorities.important.tolist() == [True, True, True, True]
    tensor[200:300] = 0.01
    tensor[:100] = 0.2
    assert priority.magnitude(tensor, GRID).important.tolist() == [True, True, False, True]


def test_magnitude__a_signed_mean_does_not_cancel() -> None:
    tensor = np.full(350, 0.1, np.float32)
    tensor[:100] = np.tile([9, -9], 50)
    assert priority.magnitude(tensor, GRID).important[0]


def test_magnitude__values_that_are_no_numbers_are_important() -> None:
    tensor = np.arange(350, dtype=np.float32)
    assert not priority.magnitude(tensor, GRID).important[0]
    tensor[50] = np.nan
    assert priority.magnitude(tensor, GRID).important[0]


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_magnitude__integers_are_all_important(dtype: str) -> None:
    grid = mlt.SegmentGrid(segment_count=4, segment_elements=100, elements=350, dtype=dtype)
    assert priority.magnitude(np.arange(350).astype(dtype), grid).important.all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_magnitude__classifies_every_floating_point_type_alike(dtype: str) -> None:
    values = np.repeat(np.array([1, 8, 2, 16], np.float32), 100)
    grid = mlt.SegmentGrid(segment_count=4, segment_elements=100, elements=400, dtype=dtype)
    tensor = (values.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else values.astype(dtype)
    # The middle of the sorted sample lies between 2 and 8.
    assert priority.magnitude(tensor, grid).important.tolist() == [False, True, False, True]


def test_magnitude__classifies_torch_tensors_alike() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        name = str(dtype).removeprefix("torch.")
        grid = mlt.SegmentGrid(segment_count=4, segment_elements=100, elements=400, dtype=name)
        tensor = torch.repeat_interleave(torch.tensor([1, 8, 2, 16]), 100).to(dtype)
        assert priority.magnitude(tensor, grid).important.tolist() == [False, True, False, True]


def test_flat__shares_the_memory() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    view = priority.flat(array, "float32", 6)
    assert np.shares_memory(view, array)
    assert view.tolist() == [0, 1, 2, 3, 4, 5]
    assert priority.flat(b"", "uint8", 0).shape == (0,)
    assert priority.flat(np.zeros(3, np.uint16), "bfloat16", 3).dtype == np.uint16
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(2, 3, requires_grad=True)
    assert priority.flat(tensor, "float32", 6).data_ptr() == tensor.data_ptr()


def test_random__draws_its_fraction_and_repeats_by_seed() -> None:
    grid = mlt.SegmentGrid(segment_count=10_000, segment_elements=1, elements=10_000, dtype="float32")
    first, again, other = priority.random(1), priority.random(1), priority.random(2)
    draws = [first(None, grid).important for _ in range(3)]
    assert all((draw == again(None, grid).important).all() for draw in draws)
    assert (draws[0] != draws[1]).any()
    assert (draws[0] != other(None, grid).important).any()
    # Ten standard deviations of 10,000 fair draws.
    assert abs(draws[0].mean() - 0.5) < 10 * 0.005
    assert priority.random(1, fraction=0.0)(None, grid).important.sum() == 0
    with pytest.raises(mlt.InvalidBufferError, match="fraction"):
        priority.random(1, fraction=1.5)


def test_tag_bits__puts_class_importance_and_critical_together() -> None:
    important, critical = np.array([True, False, False, True]), np.array([False, False, True, True])
    priorities = mlt.SegmentPriorities(important=important, critical=critical)
    assert priority.priority_bits(priorities, GRID).tolist() == [0x0A, 0x02, 0x12, 0x1A]
    priorities = mlt.SegmentPriorities(important=important, traffic_class=np.array([0, 1, 2, 6], np.uint8))
    assert priority.priority_bits(priorities, GRID).tolist() == [0x08, 0x01, 0x02, 0x0E]
    assert priority.priority_bits(important, GRID).tolist() == [0x0A, 0x02, 0x02, 0x0A]
    assert priority.priority_bits(np.arange(4, dtype=np.uint8), GRID).tolist() == [0, 1, 2, 3]


def test_all_important__marks_everything() -> None:
    assert priority.priority_bits(priority.all_important(None, GRID), GRID).tolist() == [0x0A] * 4
