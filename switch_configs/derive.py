"""A policy derived from a model's layers: classes, code points and thresholds (paper, section 4.2.2 and appendix B)."""

from __future__ import annotations

from mlt.switch_configs.model_layers import Layer, classes_of
from mlt.switch_configs.policy import ControlClass, DataClass, Policy, Switch, Wred
from mlt.switch_configs.thresholds import ClassThresholds, Model, Problem, optimise

# Expedited forwarding first, then class selectors falling; CS6 and CS7 stay with control, 0 with foreign traffic.
DATA_DSCP = (46, 40, 32, 24, 16, 8)
CONTROL_DSCP = 48
ROUTING_DSCP = 56
# The least step that RED takes without rounding on every Spectrum ASIC: a multiple of 64 cells of 96, 144 and 192 B.
RED_STEP_BYTES = 36864


def derive(
    layers: tuple[Layer, ...],
    switch: Switch,
    *,
    load: float,
    small_ratio: float = 0.5,
    granularity_bytes: int = RED_STEP_BYTES,
    model: Model = "shared",
    description: str = "",
) -> tuple[Policy, tuple[ClassThresholds, ...]]:
    """As many data classes as queues (less control and default) and layers allow; raises PolicyError, ValueError."""
    count = min(switch.queues - 2, len(layers), len(DATA_DSCP))
    problem = Problem(
        classes=classes_of(layers, count),
        buffer_bytes=switch.shared_buffer_bytes,
        packet_bytes=switch.packet_bytes,
        load=load,
        small_ratio=small_ratio,
        granularity_bytes=granularity_bytes,
        model=model,
    )
    found = optimise(problem)
    data = tuple(
        DataClass(
            name=f"layers-{index + 1}",
            dscp=DATA_DSCP[index],
            wred=Wred(min_threshold_bytes=entry.threshold_bytes),
            limit_bytes=entry.limit_bytes,
        )
        for index, entry in enumerate(found)
    )
    control = ControlClass(dscp=CONTROL_DSCP, extra_dscp=(ROUTING_DSCP,))
    return Policy(description=description, switch=switch, control=control, data=data), found
