"""Derives a policy from a model's layers: classes, DSCPs and thresholds (paper, section 4.2.2 and appendix B)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mlt.switch_configs.errors import PolicyError
from mlt.switch_configs.model_layers import Layer, classes_of
from mlt.switch_configs.policy import ControlClass, DataClass, Policy, Switch, Wred
from mlt.switch_configs.threshold_check import Checked, check_predictions
from mlt.switch_configs.thresholds import ClassThresholds, ModelOptions, Problem, optimise

# Expedited forwarding first, then class selectors in descending order; CS6 and CS7 are for control, 0 for others.
DATA_DSCP = (46, 40, 32, 24, 16, 8)
CONTROL_DSCP = 48
ROUTING_DSCP = 56
# A class starves if it loses more of its important packets than the paper's loss bound (section 6.1.1).
STARVED_LARGE_LOSS = 0.1
_STEPS_OF_LOAD = 100  # loads are rounded to a hundredth


@dataclass(frozen=True, kw_only=True)
class Derived:
    """A policy, the model's prediction for each class, and the simulation's check of the prediction."""

    policy: Policy
    rows: tuple[ClassThresholds, ...]
    checked: tuple[Checked, ...]


def problem_of(layers: tuple[Layer, ...], switch: Switch, options: ModelOptions) -> Problem:
    """A problem with as many data classes as queues (less control and default) and layers allow; raises PolicyError,
    ValueError."""
    count = min(switch.queues - 2, len(layers), len(DATA_DSCP))
    return Problem(
        classes=classes_of(layers, count),
        buffer_bytes=switch.shared_buffer_bytes,
        packet_bytes=switch.packet_bytes,
        **vars(options),
    )


def policy_of(problem: Problem, switch: Switch, *, description: str = "") -> Derived:
    """The policy that solves ``problem``.

    Raises:
        PolicyError: a class is predicted, or simulated, to lose more than ``STARVED_LARGE_LOSS`` of its large
        gradients; the message names a load at which none does.
        ValueError: the buffer is too small.
    """
    found, checked = _solved(problem)
    if starved := _starved(found, checked):
        raise PolicyError(f"load {problem.load:g}", [_why_starved(problem, starved)])
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
    policy = Policy(description=description, switch=switch, control=control, data=data)
    return Derived(policy=policy, rows=found, checked=checked)


def _solved(problem: Problem) -> tuple[tuple[ClassThresholds, ...], tuple[Checked, ...]]:
    found = optimise(problem)
    return found, check_predictions(problem, found)


def _starved(rows: tuple[ClassThresholds, ...], checked: tuple[Checked, ...]) -> dict[int, tuple[str, float]]:
    """Index of each starving class -> the method that found it, and its loss of large gradients."""
    found = {}
    for index, (row, check) in enumerate(zip(rows, checked, strict=True)):
        if row.large_loss > STARVED_LARGE_LOSS:
            found[index] = ("predicted", row.large_loss)
        elif check.enough and check.simulated.large > STARVED_LARGE_LOSS:
            found[index] = ("simulated", check.simulated.large)
    return found


def _why_starved(problem: Problem, starved: dict[int, tuple[str, float]]) -> str:
    classes = ", ".join(f"layers-{index + 1} {loss:.0%} ({who})" for index, (who, loss) in starved.items())
    load = highest_load(problem)
    out = "no load at which none does was found" if load is None else f"at load {load:.2f} none does"
    return (
        f"strict priority starves the lower classes: losses of large gradients are {classes}, more than the "
        f"{STARVED_LARGE_LOSS:.0%} that a tensor may miss; {out} (--load). No threshold helps above: slow the senders "
        "down, or use a faster port"
    )


def highest_load(problem: Problem) -> float | None:
    """The highest load below the problem's, in hundredths, at which no class starves; None if none exists."""
    low, high = 0, int(problem.load * _STEPS_OF_LOAD - 1e-9) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if _starved(*_solved(replace(problem, load=middle / _STEPS_OF_LOAD))):
            high = middle
        else:
            low = middle
    return low / _STEPS_OF_LOAD if low else None
