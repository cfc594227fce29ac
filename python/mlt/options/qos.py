"""DSCP of each traffic class, read from the switches' policy file.

``mlt switch generate`` makes the switch configuration from the same file, so hosts and switches always agree. Only the
DSCPs are read from it; thresholds, limits and ports are for the switches.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlt._shared import variables
from mlt.errors import ConfigError

VARIABLE = "MLT_QOS_POLICY"

PolicySource = str | os.PathLike[str] | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DscpMap:
    """DSCPs, 0 to 63: of the data classes, most urgent first, and of control."""

    data: tuple[int, ...]
    control: int

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.data))}; control {self.control}"


# An empty map selects the native library's default (src/core/priority.h).
DEFAULT = DscpMap(data=(), control=31)


def resolve(policy: PolicySource | None, environ: Mapping[str, str] | None = None) -> DscpMap:
    """The map of ``policy``, else of the file that MLT_QOS_POLICY names, else (unset or empty) ``DEFAULT``.

    ``policy``: a path, or the content of the YAML file as a mapping. Raises ConfigError that lists every problem.
    """
    where = "qos_policy"
    if policy is None:
        policy = variables.text(os.environ if environ is None else environ, VARIABLE)
        where = VARIABLE
    if policy is None:
        return DEFAULT
    # Imported here: a job without a policy then does not wait for the policy's schema.
    from mlt.switch_configs.errors import PolicyError
    from mlt.switch_configs.policy import load, validate

    try:
        found = validate(policy) if isinstance(policy, Mapping) else load(os.fspath(policy))
    except PolicyError as error:
        raise ConfigError(f"{where}: {error}") from None
    except TypeError:
        raise ConfigError(f"{where} is {policy!r}; give the path of a policy file, or a mapping") from None
    return DscpMap(data=found.class_to_dscp(), control=found.control_dscp)
