"""``DistributedTrainer`` with BytePS's arguments: Gluon's trainer, whose gradients are averaged over all workers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from mlt.mxnet import parameters, trainer
from mlt.mxnet.byteps.asynchronous import SharedWeights
from mlt.mxnet.compression import Compression, Compressor

from mlt._named.byteps import is_asynchronous

_COMPRESSORS: Final = ("compressor", "ef", "momentum")
_OPTIONS: Final = ("k", "normalize", "partition", "scaling", "seed")
"""Options of compressors; without a compressor they have no meaning in BytePS either."""


class DistributedTrainer(trainer.DistributedTrainer):
    """``gluon.Trainer`` that averages gradients over all workers, and begins with the parameters of ``root_rank``.

    ``step(batch_size, ignore_stale_grad=False)`` takes the batch of this worker. Parameters of ``root_rank`` replace
    those of the others in the first step after they have come into being, before gradients are applied. The front
    layers, which are the first parameters by name, travel with the highest priority. ``compression_params``: {"fp16":
    True} sends float16. Raises ValueError for BytePS's other compressors, and for parameters on several devices.

    With BYTEPS_ENABLE_ASYNC=1 gradients are not averaged, nor compressed (``mlt.mxnet.byteps.asynchronous``).

    >>> trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, root_rank=0)
    """

    _params_to_init: list[Any]  # Gluon's
    _params: list[Any]
    _optimizer: Any

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Any = None,
        root_rank: int = 0,
        compression_params: Mapping[str, Any] | None = None,
    ) -> None:
        compression = _compression_of(compression_params)
        self._shared = SharedWeights() if is_asynchronous(os.environ) else None
        if self._shared is not None and compression is not Compression.none:
            raise ValueError("asynchronous training (BYTEPS_ENABLE_ASYNC=1) has no compression: leave it out")
        super().__init__(params, optimizer, optimizer_params, compression)
        self.root_rank = root_rank

    def _allreduce_grads(self) -> None:
        """Called by ``step`` and ``allreduce_grads``."""
        if self._shared is None:
            super()._allreduce_grads()

    def _update(self, ignore_stale_grad: bool = False) -> None:
        """Called by ``step`` and ``update``."""
        update: Any = super()._update
        if self._shared is None:
            update(ignore_stale_grad)
            return
        trained = [param for param in self._params if param.grad_req != "null"]
        for param in trained:
            trainer.check_one_device(param)
        weights = [param.data() for param in trained]
        self._shared.update(
            weights, [param.name for param in trained], self._optimizer, lambda: update(ignore_stale_grad)
        )

    def _init_params(self) -> None:
        """Called by Gluon before it reduces or updates, while there are parameters that it did not give to all."""
        ready = {param.name: param for param in self._params_to_init if not param._deferred_init}
        parameters.broadcast_parameters(ready, self.root_rank, "of the trainer ")
        self._params_to_init = [param for param in self._params_to_init if param._deferred_init]


def _compression_of(params: Mapping[str, Any] | None) -> type[Compressor]:
    given = dict(params or {})
    if unknown := sorted(given.keys() - {*_COMPRESSORS, *_OPTIONS, "fp16"}):
        raise ValueError(
            f"compression_params has {', '.join(unknown)}, which BytePS does not know: give {{'fp16': True}}"
        )
    if asked := [f"{name}={given[name]!r}" for name in _COMPRESSORS if given.get(name)]:
        raise ValueError(
            f"compression_params: mlt has none of BytePS's compressors ({', '.join(asked)}): give {{'fp16': True}}, or "
            "allow loss with mlt.mxnet.DistributedTrainer(loss_bound=0.1); a momentum belongs into optimizer_params"
        )
    return Compression.fp16 if given.get("fp16") else Compression.none
