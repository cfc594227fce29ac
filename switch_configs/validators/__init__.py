"""Judges we did not write. Each reads the text a target wrote (or a mutation of it) and lists what is wrong.

A validator that is not installed says why; nothing here is needed to generate. Registry packages come with the
``switch`` extra, the rest with tools/install_switch_validators.sh.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mlt.switch_configs.generator import Generated
from mlt.switch_configs.policy import Policy


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """``skipped`` names the reason when the validator could not run; otherwise ``problems`` is what it found."""

    target: str
    validator: str
    problems: tuple[str, ...] = ()
    skipped: str = ""


class Validator(ABC):
    """One outside judge of one or more targets."""

    name: ClassVar[str]
    targets: ClassVar[tuple[str, ...]]

    @abstractmethod
    def missing(self) -> str:
        """Why it cannot run here; empty if it can."""

    @abstractmethod
    def judge(self, generated: Generated, files: Mapping[str, str]) -> list[str]:
        """Problems of ``files``, which are what ``generated`` wrote or a mutation of it."""


def home() -> Path:
    """Where tools/install_switch_validators.sh puts things."""
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
    """Every validator on every target it knows."""
    found = []
    for validator in validators():
        reason = validator.missing()
        for one in generated:
            if one.target.name not in validator.targets:
                continue
            problems = () if reason else tuple(validator.judge(one, one.apply))
            found.append(Verdict(target=one.target.name, validator=validator.name, problems=problems, skipped=reason))
    return found
