"""Third-party validators. Each reads the text that a target wrote (or a mutation of it) and lists its errors.

A missing validator gives the reason; generation needs none of them. Registry packages come with the ``switch`` extra,
the rest with tools/install_switch_validators.sh.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mlt.switch_configs.generator import Generated
from mlt.switch_configs.policy import Policy


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """``skipped``: the reason why the validator could not run; otherwise ``problems`` is its result."""

    target: str
    validator: str
    problems: tuple[str, ...] = ()
    skipped: str = ""


class Validator(ABC):
    """One third-party validator of one or more targets."""

    name: ClassVar[str]
    targets: ClassVar[tuple[str, ...]]

    @abstractmethod
    def missing(self) -> str:
        """Why it cannot run here; empty if it can."""

    @abstractmethod
    def problems_of(self, generated: Generated, files: Mapping[str, str]) -> list[str]:
        """Problems of ``files``, which ``generated`` wrote, or a mutation of them."""


def number_or_text(text: str) -> int | str:
    """``text`` as an integer if it is one."""
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def home() -> Path:
    """Installation folder of tools/install_switch_validators.sh."""
    return Path(os.environ.get("MLT_SWITCH_VALIDATORS", "build/switch-validators")).resolve()


def validators() -> tuple[Validator, ...]:
    """Every validator, installed or not."""
    from mlt.switch_configs.validators import in_process, separate

    return (
        in_process.Pyavd(),
        in_process.Nvueschema(),
        in_process.Netutils(),
        in_process.Openconfig(),
        separate.NxosYang(),
        separate.OnyxModules(),
        separate.HierConfig(),
    )


def validate_all(policy: Policy, generated: Sequence[Generated]) -> list[Verdict]:
    """Every validator on every target that it supports."""
    found = []
    for validator in validators():
        reason = validator.missing()
        for one in generated:
            if one.target.name not in validator.targets:
                continue
            problems = () if reason else tuple(validator.problems_of(one, one.apply))
            found.append(Verdict(target=one.target.name, validator=validator.name, problems=problems, skipped=reason))
    return found
