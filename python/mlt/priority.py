"""Priority functions: choose the important segments of a tensor (paper section 4.2.2).

A priority function is called once per post with the flat tensor and its ``SegmentGrid``. It returns one of

- a ``SegmentPriorities``,
- an array of ``bool``, one per segment: important or not,
- an array of ``uint8``, one per segment: class (0x07) | ``IMPORTANT`` | ``CRITICAL``.

Important segments are sent first, and switches drop them last. Critical segments are never lost, whatever the loss
bound. Built in: ``magnitude``, ``all_important`` and ``random``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlt.errors import InvalidBufferError

IMPORTANT = 0x08
CRITICAL = 0x10
CLASS_MASK = 0x07
# The paper estimates magnitudes from 5 % of the elements.
SAMPLE_STRIDE = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentGrid:
    """Segmentation of a tensor: ``segment_count`` segments of ``segment_elements`` elements; the last one may be
    shorter.

    ``traffic_class``: class of the tensor's layer, 0 the most urgent. ``traffic_classes``: number of classes, 1 to 8
    (7, or as many as the QoS policy has).

    >>> rank_0.segment_grid(np.zeros(1_000, np.float32), to=1).elements
    1000
    """

    segment_count: int
    segment_elements: int
    elements: int
    dtype: str
    traffic_class: int = 0
    traffic_classes: int = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPriorities:
    """Result of a priority function: arrays with one entry per segment (``segment_count``).

    ``important`` and ``critical`` are bool. ``traffic_class`` is below the grid's ``traffic_classes`` (None: the class
    of the tensor's layer); a higher class is rejected.

    >>> def keep_the_first(tensor, grid):
    ...     first = np.arange(grid.segment_count) == 0
    ...     return SegmentPriorities(important=first, critical=first)
    >>> keep_the_first(None, SegmentGrid(segment_count=3, segment_elements=8, elements=24, dtype="float32")).critical
    array([ True, False, False])
    """

    important: npt.NDArray[np.bool_]
    critical: npt.NDArray[np.bool_] | None = None
    traffic_class: npt.NDArray[np.uint8] | None = None


PriorityFunction = Callable[[Any, SegmentGrid], SegmentPriorities | npt.NDArray[Any]]


class Magnitude:
    """Important: segments whose mean magnitude is at or above the tensor's median magnitude.

    As argument of ``post_send`` it runs in the native library on a sample. When called, it uses every element's
    magnitude and a sampled median; other functions can build on that. All segments of types that are not floating point
    are important, as are segments that contain NaN.

    >>> grid = SegmentGrid(segment_count=2, segment_elements=40, elements=80, dtype="float32")
    >>> magnitude(np.repeat(np.float32([0.1, 9]), 40), grid).important
    array([False,  True])
    """

    def __call__(self, tensor: Any, grid: SegmentGrid) -> SegmentPriorities:
        important = np.ones(grid.segment_count, np.bool_)
        values = _magnitudes(tensor, grid)
        if values is not None and grid.segment_count > 1:
            starts = np.arange(grid.segment_count) * grid.segment_elements
            sums = np.add.reduceat(values, starts, dtype=np.float64)
            means = sums / np.diff(np.append(starts, grid.elements))
            sample = values[::SAMPLE_STRIDE]
            sample = sample[np.isfinite(sample)]
            if sample.size:
                important = ~(means < np.median(sample))
        return SegmentPriorities(important=important)


def all_important(tensor: Any, grid: SegmentGrid) -> SegmentPriorities:
    """Every segment important: for tensors whose parts matter equally, such as parameters.

    >>> all_important(None, SegmentGrid(segment_count=2, segment_elements=8, elements=16, dtype="int64")).important
    array([ True,  True])
    """
    return SegmentPriorities(important=np.ones(grid.segment_count, np.bool_))


magnitude = Magnitude()


def random(seed: int, *, fraction: float = 0.5) -> PriorityFunction:
    """A function that makes each segment important with probability ``fraction``; a baseline for comparisons.

    Each call draws new values; the same seed gives the same sequence.

    >>> grid = SegmentGrid(segment_count=1_000, segment_elements=8, elements=8_000, dtype="float32")
    >>> 200 < int(random(seed=1, fraction=0.25)(None, grid).important.sum()) < 300
    True
    """
    if not 0.0 <= fraction <= 1.0:
        raise InvalidBufferError(f"fraction is {fraction!r}; it is a probability in [0, 1]")
    calls = itertools.count()

    def randomly(tensor: Any, grid: SegmentGrid) -> SegmentPriorities:
        draws = np.random.default_rng((seed, next(calls))).random(grid.segment_count)
        return SegmentPriorities(important=draws < fraction)

    return randomly


def priority_bits(priorities: SegmentPriorities | npt.NDArray[Any], grid: SegmentGrid) -> npt.NDArray[np.uint8]:
    """The bytes that the native library takes, from the result of a priority function. Raises InvalidBufferError."""
    if not isinstance(priorities, SegmentPriorities):
        array = np.asarray(priorities)
        if array.dtype == np.uint8:
            return np.ascontiguousarray(_one_per_segment(array, grid, "priorities"))
        if array.dtype != np.bool_:
            raise InvalidBufferError(
                f"it returned {array.dtype}; return SegmentPriorities, or an array of bool or uint8"
            )
        priorities = SegmentPriorities(important=array)
    bits = np.full(grid.segment_count, grid.traffic_class, np.uint8)
    if priorities.traffic_class is not None:
        classes = _one_per_segment(np.asarray(priorities.traffic_class), grid, "traffic_class")
        if classes.size and not (classes.min() >= 0 and classes.max() <= CLASS_MASK):
            raise InvalidBufferError(f"traffic_class runs from {classes.min()} to {classes.max()}; classes are 0 to 7")
        bits = classes.astype(np.uint8)
    bits[_one_per_segment(np.asarray(priorities.important, np.bool_), grid, "important")] |= IMPORTANT
    if priorities.critical is not None:
        bits[_one_per_segment(np.asarray(priorities.critical, np.bool_), grid, "critical")] |= CRITICAL
    return bits


def flat(tensor: Any, dtype: str, elements: int) -> Any:
    """``tensor`` as a one-dimensional array that shares its memory: a torch tensor for torch, otherwise a numpy array.

    bfloat16 from a source other than torch becomes uint16, because numpy lacks the type.
    """
    if hasattr(tensor, "data_ptr"):
        return tensor.detach().reshape(-1)
    kind = np.dtype("uint16" if dtype == "bfloat16" else dtype)
    if elements == 0:
        return np.empty(0, kind)
    return np.frombuffer(memoryview(tensor).cast("B"), kind)


def _one_per_segment(array: npt.NDArray[Any], grid: SegmentGrid, what: str) -> npt.NDArray[Any]:
    if array.shape != (grid.segment_count,):
        raise InvalidBufferError(f"{what} has shape {list(array.shape)}; the tensor has {grid.segment_count} segments")
    return array


def _magnitudes(tensor: Any, grid: SegmentGrid) -> npt.NDArray[np.float32] | None:
    """Absolute values as float32; None for types that are not floating point."""
    if "float" not in grid.dtype:
        return None
    if hasattr(tensor, "data_ptr"):
        values = tensor.detach().float().numpy()
    elif grid.dtype == "bfloat16":
        values = (np.asarray(tensor).astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.asarray(tensor).astype(np.float32)
    magnitudes: npt.NDArray[np.float32] = np.abs(values)
    return magnitudes
