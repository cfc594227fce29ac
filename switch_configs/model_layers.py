"""A model's layers: sizes, classes, and the cost of lost gradients.

Class of layer i: floor(i P / L) (paper, section 4.2.2). Default cost: figure 4 of the paper, as the text of section 3.3
quotes it; measured values in the file take precedence, layer by layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from mlt.switch_configs.errors import PolicyError
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from mlt._shared.field_errors import expectation
from mlt._shared.structured_text import SyntaxProblem, parse_json
from mlt._shared.text_files import UnreadableError, read_text

BYTES_PER_ELEMENT = 4
# Section 3.3: loss (percent) without effect on speed and accuracy, for the first and last 20 % of layers and for the
# smallest and largest 20 % of gradients.
FRONT_TOLERANCE_PERCENT = 5.0
BACK_TOLERANCE_PERCENT = 0.3
SMALL_TOLERANCE_PERCENT = 20.0
LARGE_TOLERANCE_PERCENT = 0.4
FIGURE_4_SHARE_OF_LAYERS = 0.2


class Layer(BaseModel):
    """One layer, front first. Costs in extra rounds per percent lost; both or neither."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field(min_length=1)
    elements: int = Field(gt=0)
    rounds_per_percent_small: float | None = Field(default=None, ge=0)
    rounds_per_percent_large: float | None = Field(default=None, ge=0)


@dataclass(frozen=True, kw_only=True)
class ModelClass:
    """One priority class: bytes per iteration, and extra rounds per percent of small / large gradients lost."""

    layers: tuple[str, ...]
    size_bytes: int
    rounds_per_percent_small: float
    rounds_per_percent_large: float


def load_layers(path: str | Path) -> tuple[Layer, ...]:
    """Read a JSON list of layers, front layer first; raises PolicyError that names the file and the entry."""
    layers: tuple[Layer, ...]
    try:
        raw = parse_json(read_text(path))
        layers = tuple(TypeAdapter(list[Layer]).validate_python(raw))
    except UnreadableError as error:
        raise PolicyError(str(path), [f"cannot be read: {error.reason}"]) from error
    except SyntaxProblem as error:
        raise PolicyError(str(path), [str(error)]) from None
    except ValidationError as error:
        problems = [f"layer {'.'.join(map(str, p['loc']))}: {expectation(p)}" for p in error.errors()]
        raise PolicyError(str(path), problems) from error
    half = [
        layer.name
        for layer in layers
        if (layer.rounds_per_percent_small is None) != (layer.rounds_per_percent_large is None)
    ]
    if not layers or half:
        raise PolicyError(str(path), [f"layers {half}: give both costs or neither" if half else "no layers"])
    return layers


def default_cost(index: int, count: int) -> tuple[float, float]:
    """(small, large) rounds per percent for layer ``index`` of ``count``, in units of figure 4's tolerance.

    The tolerance changes geometrically from front to back, times the magnitude's own relative to its geometric mean. A
    cost of 1 is a loss that uses all the tolerance of a group of 20 % of the layers, spread evenly over them.
    """
    position = index / (count - 1) if count > 1 else 1.0
    layer = FRONT_TOLERANCE_PERCENT * (BACK_TOLERANCE_PERCENT / FRONT_TOLERANCE_PERCENT) ** position
    middle = math.sqrt(SMALL_TOLERANCE_PERCENT * LARGE_TOLERANCE_PERCENT)
    group = max(1.0, FIGURE_4_SHARE_OF_LAYERS * count)
    return (
        1 / (group * layer * SMALL_TOLERANCE_PERCENT / middle),
        1 / (group * layer * LARGE_TOLERANCE_PERCENT / middle),
    )


def classes_of(layers: tuple[Layer, ...], count: int) -> tuple[ModelClass, ...]:
    """Distribute the layers over ``count`` classes; raises PolicyError if a class would be empty."""
    if len(layers) < count:
        raise PolicyError("layers", [f"{len(layers)} layers cannot fill {count} classes; use fewer classes"])
    members: list[list[int]] = [[] for _ in range(count)]
    for index in range(len(layers)):
        members[index * count // len(layers)].append(index)
    found = []
    for group in members:
        small = large = 0.0
        for index in group:
            layer = layers[index]
            one, other = default_cost(index, len(layers))
            small += one if layer.rounds_per_percent_small is None else layer.rounds_per_percent_small
            large += other if layer.rounds_per_percent_large is None else layer.rounds_per_percent_large
        found.append(
            ModelClass(
                layers=tuple(layers[index].name for index in group),
                size_bytes=sum(layers[index].elements for index in group) * BYTES_PER_ELEMENT,
                rounds_per_percent_small=small,
                rounds_per_percent_large=large,
            )
        )
    return tuple(found)
