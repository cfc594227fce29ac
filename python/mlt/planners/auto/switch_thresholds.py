"""Queue thresholds for ``mlt plan auto``: the switch generator's optimiser, fed from the cluster file.

MLT, appendix B. The optimiser and the policy are part of ``mlt.switch_configs``. This module groups the cluster's
switches into kinds (buffer, queues, fastest port) and calls the optimiser once per kind. It assumes that data fills the
busiest port (load 1), because a plan's slowest link is full by construction, and that the workers of the largest job
send in step.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mlt.planners._shared.documents import InputError, Problem
from mlt.planners.cluster import Cluster
from mlt.planners.plan import Threshold
from mlt.switch_configs.derive import policy_of, problem_of
from mlt.switch_configs.errors import PolicyError
from mlt.switch_configs.model_layers import load_layers
from mlt.switch_configs.policy import Switch as PolicySwitch
from mlt.switch_configs.thresholds import ModelOptions

_LOAD = 1.0


@dataclass(frozen=True)
class SwitchPlan:
    """Thresholds of every switch with a known buffer, and the name of their policy."""

    thresholds: tuple[Threshold, ...]
    policy: str


def plan_thresholds(cluster: Cluster, layers_file: Path | None) -> SwitchPlan | str:
    """Thresholds for every packet switch with a ``buffer``, or the reason for their absence.

    Raises:
        InputError: the layers file is invalid, or a switch's buffer cannot hold the classes.
    """
    if layers_file is None:
        return "they follow from the model's layers; name them with --layers"
    try:  # also where no switch needs them: a wrong file is not ignored
        layers = load_layers(layers_file)
    except PolicyError as error:
        raise InputError([Problem(where=("--layers",), message=str(error))]) from None
    kinds: dict[tuple[int, int, int], list[str]] = {}
    for switch in cluster.switches:
        rates = [link.bandwidth for link in cluster.links_of[switch.name]]
        if switch.kind == "packet" and switch.buffer is not None and rates:
            kinds.setdefault((int(switch.buffer), switch.queues, int(max(rates))), []).append(switch.name)
    if not kinds:
        return "no switch of the cluster file states its buffer"
    out: list[Threshold] = []
    name = ""
    workers = max((len(job.workers) for job in cluster.jobs), default=1)
    for (buffer, queues, rate), members in kinds.items():
        ports = sorted({cluster.port(link, members[0]) for link in cluster.links_of[members[0]]})
        try:
            described = PolicySwitch(
                queues=queues, shared_buffer_bytes=buffer, link_rate_bits_per_second=rate, ports=tuple(ports)
            )
            problem = problem_of(layers, described, ModelOptions(load=_LOAD, workers=workers))
        except (PolicyError, ValueError) as error:
            where = f"thresholds of {members[0]}"
            raise InputError([Problem(where=(where,), message=str(error))], source=str(layers_file)) from None
        try:
            derived = policy_of(problem, described)
        except PolicyError as error:
            return f"thresholds of {members[0]}: {error}"
        name = derived.policy.name
        out += [
            Threshold(
                switch=member,
                queue=queue,
                red_min_bytes=entry.threshold_bytes,
                red_max_bytes=entry.threshold_bytes,
                limit_bytes=entry.limit_bytes,
            )
            for member in members
            for queue, entry in enumerate(derived.rows)
        ]
    return SwitchPlan(tuple(out), name)
