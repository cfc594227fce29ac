"""``Options``: what a process group "mlt" is given as ``pg_options``."""

from __future__ import annotations

from typing import Any

from mlt.torch.process_group_base import BACKEND

from mlt._gradients.loss import Allowance
from mlt._gradients.statistics import LossCount, Losses
from mlt._shared.loss_bounds import loss_bound_of
from torch._C._distributed_c10d import Backend


class Options(Backend.Options):
    """Options of one process group "mlt", for ``pg_options`` of ``init_process_group``, ``new_group`` and the others.

    ``loss_bound`` in [0, 1), a fraction or a text such as "1%": what each ``all_reduce`` and ``reduce_scatter`` of the
    group, in all their forms, may lose of a sum or mean of floating-point elements, in each hop; 0, the default, loses
    nothing. Everything else of the group stays exact: other element types and operations, other collectives, the
    distribution of results. All ranks of an all-reduce end with the same bits. Inside ``lossy``, its bound holds
    instead. The options cannot be changed. Every rank must give the group the same ones. A group that is created
    without options is exact, whatever those of the default group.

    ``lossy_results``: the results of an ``all_reduce`` may lose as much, and **ranks end with different bits**, as in
    ``lossy``. A reduce-scatter has nothing to distribute. ``checksums``: collectives carry checksums from memory to
    memory; None: ``MLT_CHECKSUMS``, else not. They are the job's, so that only the group that starts it may choose: the
    default group, or one beside another backend. A group that shares its connections may name what it has.

    Raises ValueError for a bound that is none, and for a switch that is neither True nor False.

    >>> dist.init_process_group("mlt")  # doctest: +SKIP
    >>> options = Options(loss_bound="1%")
    >>> gradients = dist.new_group(backend="mlt", pg_options=options)  # doctest: +SKIP
    >>> dist.all_reduce(gradient, group=gradients)  # doctest: +SKIP
    >>> options.losses.loss_fraction  # of what this rank was sent so far
    0.0
    >>> options.loss_bound
    0.01
    """

    # torch's class, because ``init_device_mesh(backend_override={"dp": options})`` takes no other.

    def __init__(
        self, *, loss_bound: float | str = 0.0, lossy_results: bool = False, checksums: bool | None = None
    ) -> None:
        bound = loss_bound_of(loss_bound)
        if not isinstance(lossy_results, bool):
            raise ValueError(f"lossy_results is {lossy_results!r}; give True or False")
        if checksums is not None and not isinstance(checksums, bool):
            raise ValueError(f"checksums is {checksums!r}; give True, False or None")
        super().__init__(BACKEND)
        self._loss_bound = bound
        self._lossy_results = lossy_results
        self._checksums = checksums
        self._count = LossCount()

    @property
    def loss_bound(self) -> float:
        """The fraction."""
        return self._loss_bound

    @property
    def lossy_results(self) -> bool:
        return self._lossy_results

    @property
    def checksums(self) -> bool | None:
        """None: as the environment says."""
        return self._checksums

    @property
    def losses(self) -> Losses:
        """The losses so far on this rank of the reductions that may lose, in all groups with these options."""
        return self._count.total()

    def __repr__(self) -> str:
        results = ", lossy_results=True" if self._lossy_results else ""
        checksums = "" if self._checksums is None else f", checksums={self._checksums}"
        return f"Options(loss_bound={self._loss_bound:g}{results}{checksums})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _options, (
            self._loss_bound,
            self._lossy_results,
            self._checksums,
        )  # torch copies a group's options for another group


def allowance_of(options: Options) -> Allowance:
    """The loss that reductions of a group with these options may have; it is counted in the options."""
    return Allowance(
        options.loss_bound,
        observe=options._count.add if options.loss_bound else None,
        lossy_results=options.lossy_results and options.loss_bound > 0,
    )


def options_of(given: object) -> Options:
    """``pg_options`` as a group was given them. Raises TypeError for those of another backend."""
    if given is None:
        return Options()
    if not isinstance(given, Options):
        raise TypeError(
            f"mlt: pg_options is of type {type(given).__module__}.{type(given).__qualname__}; a group of backend "
            f'"{BACKEND}" takes mlt.torch.Options(loss_bound=...), or none'
        )
    return given


def _options(loss_bound: float, lossy_results: bool, checksums: bool | None) -> Options:
    return Options(loss_bound=loss_bound, lossy_results=lossy_results, checksums=checksums)
