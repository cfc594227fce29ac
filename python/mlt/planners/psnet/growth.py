"""Growing a PSNet by one module while jobs run.

Source: PSNet, section 3.1 (fine-grained expansion) and 3.4 (growth does not affect tasks inside existing modules, only
tasks across modules). Only links between SuperNode switches change: floor(R/2) are cut, each replaced by two links to
the new module (``wiring.grow_wiring``). Among all such choices, the one with the fewest bytes of running cross-module
jobs on the cut links is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlt.planners.psnet.psnet import Module, PSNet, with_module
from mlt.planners.psnet.wiring import Growth, Pair, grow_wiring


@dataclass(frozen=True)
class NetworkGrowth:
    """The grown network, the cables that changed, and the jobs that had traffic on a cut link."""

    network: PSNet
    wiring: Growth
    disturbed_jobs: tuple[str, ...]


def grow_psnet(
    network: PSNet,
    module: Module | None = None,
    *,
    seed: int = 0,
    job_bytes: Mapping[str, Mapping[Pair, float]] | None = None,
) -> NetworkGrowth:
    """Add one module.

    module: the module to add; a copy of module 1 when None. Its R must be the network's.
    job_bytes: job -> (low, high) module pair -> bytes per iteration on the trunk between them, both directions; jobs
        inside one module have none and cannot be disturbed.
    """
    job_bytes = job_bytes or {}
    trunks = network.wiring.trunks()
    per_link: dict[Pair, float] = {}
    for loads in job_bytes.values():
        for pair, amount in loads.items():
            per_link[pair] = per_link.get(pair, 0.0) + amount / trunks[pair]
    growth = grow_wiring(network.wiring, seed=seed, disturbance=per_link)
    grown = with_module(network, module or network.modules[0], growth.wiring)
    cut = set(growth.removed)
    disturbed = tuple(name for name, loads in job_bytes.items() if any(loads.get(pair, 0.0) > 0 for pair in cut))
    return NetworkGrowth(grown, growth, disturbed)
