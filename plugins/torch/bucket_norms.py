"""``BucketNorms``: compares the norms of all workers' gradient buckets before the hook averages them
(``Context.check_norms``): one host's corrupt memory must not become every rank's model.

The comparisons are a stream of their own, so they need no common order with the buckets' averages. Absent on purpose:
sparse buckets, whose values differ in number from rank to rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from mlt import Context

# Streams of the hook have the first, those of sparse buckets both; no group has a number with the second. So no other
# stream has the second without the first.
_HOOK_BIT: Final = 1 << 31
_NORMS_BIT: Final = 1 << 29


class BucketNorms:
    """Comparisons among the workers ``ranks`` of ``context`` (None: all), with the same buckets in the same order.

    ``max_ratio`` and ``max_dropped`` as in ``Context.check_norms``.
    """

    def __init__(
        self, context: Context, ranks: Sequence[int] | None, stream: int, max_ratio: float, max_dropped: int
    ) -> None:
        self._context, self._ranks, self._stream = context, ranks, stream & ~_HOOK_BIT | _NORMS_BIT
        self._max_ratio, self._max_dropped = max_ratio, max_dropped

    def check(self, bucket: torch.Tensor) -> float:
        """Wait for the other workers; the factor of the average, above 1 if a worker's bucket was set to zero.

        Raises CancelledError, at every worker, that names the workers at fault.
        """
        return self._context.check_norms(
            bucket,
            max_ratio=self._max_ratio,
            max_dropped=self._max_dropped,
            ranks=self._ranks,
            stream=self._stream,
        ).scale
