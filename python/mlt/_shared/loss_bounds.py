"""The loss bound of a call: a fraction in [0, 1), or text by the grammar of ``mlt._shared.units``, such as "10%"."""

from __future__ import annotations

from numbers import Real

from mlt._shared.units import LOSS
from mlt.errors import ConfigError


def loss_bound_of(given: float | str) -> float:
    """The fraction. Raises ConfigError, which is a ValueError, unless it is in [0, 1)."""
    try:
        # numpy's numbers too, such as a schedule's.
        is_number = isinstance(given, Real) and not isinstance(given, bool | int)
        bound = LOSS.read(float(given) if is_number else given)
    except ValueError:
        bound = 1.0
    if not bound < 1.0:
        raise ConfigError(f"the loss bound is {given!r}; it must lie in [0, 1): write 0.1 or '10%' for 10 %, say")
    return bound
