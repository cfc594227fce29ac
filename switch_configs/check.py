"""``mlt switch check``: the policy's rules, each target's errors, and a comparison of all targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from mlt.switch_configs.behaviour import Difference
from mlt.switch_configs.capabilities import MEANING
from mlt.switch_configs.errors import CannotExpressError, MissingToolError, SwitchConfigError
from mlt.switch_configs.generator import Generated, compare, generate
from mlt.switch_configs.policy import Policy
from mlt.switch_configs.registry import targets
from mlt.switch_configs.semantics import Finding, findings


@dataclass(frozen=True, kw_only=True)
class TargetResult:
    """``status``: ok, refused (the target cannot express it), skipped (a tool is missing) or broken (a defect)."""

    target: str
    status: str
    detail: str = ""
    generated: Generated | None = None


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two targets' behaviours under one policy. ``accepted`` and ``near`` are counts."""

    left: str
    right: str
    unexplained: tuple[Difference, ...]
    accepted: int
    near: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """The whole check. ``ok`` is False on any broken rule, rejection, defect or unexplained difference."""

    findings: tuple[Finding, ...]
    results: tuple[TargetResult, ...]
    pairs: tuple[Pair, ...]

    @property
    def ok(self) -> bool:
        return (
            not any(finding.severity == "error" for finding in self.findings)
            and not any(result.status in ("refused", "broken") for result in self.results)
            and not any(pair.unexplained for pair in self.pairs)
        )


def check(policy: Policy, *, names: Iterable[str] | None = None, ports: tuple[str, ...] | None = None) -> Report:
    """Check the policy for the named targets (all by default)."""
    found = tuple(findings(policy))
    if any(finding.severity == "error" for finding in found):
        return Report(findings=found, results=(), pairs=())
    wanted = policy.targets or targets() if names is None else names
    results = [_one(policy, name, ports) for name in dict.fromkeys(wanted)]
    written = [result.generated for result in results if result.generated is not None]
    pairs = []
    for left, right in combinations(written, 2):
        found_between = compare(left, right)
        pairs.append(
            Pair(
                left=str(left.target.spec),
                right=str(right.target.spec),
                unexplained=found_between.unexplained,
                accepted=len(found_between.accepted),
                near=len(found_between.near),
            )
        )
    return Report(findings=found, results=tuple(results), pairs=tuple(pairs))


def _one(policy: Policy, name: str, ports: tuple[str, ...] | None) -> TargetResult:
    try:
        generated = generate(policy, name, ports=ports)
    except CannotExpressError as error:
        return TargetResult(target=name, status="refused", detail=str(error))
    except MissingToolError as error:
        return TargetResult(target=name, status="skipped", detail=str(error))
    except SwitchConfigError as error:
        return TargetResult(target=name, status="broken", detail=str(error))
    without = "\n".join(f"without {feature} ({MEANING[feature]}): {why}" for feature, why in generated.plan.accepted)
    return TargetResult(target=name, status="ok", detail=without, generated=generated)
