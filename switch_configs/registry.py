"""Finds the vendors: every module in ``vendors`` with a ``TARGET``. No list is maintained by hand."""

from __future__ import annotations

import pkgutil
from functools import lru_cache
from importlib import import_module

from mlt.switch_configs import vendors
from mlt.switch_configs.errors import SwitchConfigError, TargetError
from mlt.switch_configs.platforms import Spec, parse_spec
from mlt.switch_configs.target import Target

from mlt._shared.similar_names import did_you_mean


@lru_cache(maxsize=1)
def targets() -> dict[str, Target]:
    """Name -> target, sorted by name."""
    found: dict[str, Target] = {}
    for module in pkgutil.iter_modules(vendors.__path__):
        target = getattr(import_module(f"{vendors.__name__}.{module.name}"), "TARGET", None)
        if isinstance(target, Target):
            if target.name in found:
                raise SwitchConfigError(f"two vendor modules define target {target.name!r}")
            found[target.name] = target
    return dict(sorted(found.items()))


def target(text: str) -> Target:
    """One target by ``system[/release][@platform]``; the error lists the known systems."""
    spec = parse_spec(text)
    known = targets()
    if spec.system not in known:
        meant = did_you_mean(spec.system, list(known))
        raise TargetError(f"unknown target {spec.system!r}; available: {', '.join(known)}{meant}")
    found = known[spec.system]
    return found if spec == Spec(spec.system) else type(found)(spec)
