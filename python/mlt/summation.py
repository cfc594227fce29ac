"""The summation service: sums what the workers push, averages by what arrived, and hands the results back."""

from __future__ import annotations

from mlt.context import Context
from mlt.errors import ConfigError


class SummationService:
    """Makes this rank, one of those after the workers, a summation service. It serves from here on until the context
    is closed; ``run`` waits for its end. Raises ConfigError on a worker's rank."""

    def __init__(self, context: Context) -> None:
        if context.rank < context.world_size:
            last = context.size - 1
            raise ConfigError(
                f"rank {context.rank} is a worker; summation services are the ranks after the workers"
                + (f" ({context.world_size} to {last})" if context.services else " (this job has none: services=0)")
            )
        self._context = context
        context.engine.serve(context.world_size)

    @property
    def context(self) -> Context:
        """The context it was made for."""
        return self._context

    def run(self, timeout: float | None = None) -> bool:
        """Block until every worker said goodbye or failed; False if ``timeout`` seconds passed first."""
        return self._context.engine.wait_workers_gone(-1 if timeout is None else max(round(timeout * 1e9), 0))
