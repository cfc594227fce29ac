"""A feature that a target lacks is rejected with its name and a fix, unless the policy accepts it."""

from __future__ import annotations

import re

import pytest
from checks import names
from mlt.switch_configs.capabilities import Feature
from mlt.switch_configs.errors import CannotExpressError
from mlt.switch_configs.generator import plan
from mlt.switch_configs.plan import shares
from mlt.switch_configs.registry import target, targets
from switch_lab import example, small


@pytest.mark.parametrize("name", list(targets()))
def test_capabilities__every_target_states_every_feature_with_a_reason(name: str) -> None:
    capabilities = target(name).capabilities
    assert set(capabilities.support) == set(Feature)
    for feature in Feature:
        support = capabilities.of(feature)
        assert support.why
        if support.level == "no" and feature in (Feature.FAIR, Feature.WEIGHTED):
            assert support.way_out
    assert capabilities.above_max_source


@pytest.mark.parametrize(
    ("name", "feature"),
    [("eos", "queue-limit"), ("eos", "step-threshold"), ("os10", "step-threshold")],
)
def test_plan__a_rejection_names_feature_target_and_fix(name: str, feature: str) -> None:
    bare = example().model_copy(update={"accept": {}})
    with pytest.raises(CannotExpressError) as caught:
        plan(bare, target(name))
    assert f"{name}: cannot express {feature}" in str(caught.value)
    assert "Way out" in str(caught.value)
    # Once, though every class asks for it.
    assert len(set(caught.value.problems)) == len(caught.value.problems)
    assert f"accept: {{{name}: {{{feature}:" in str(caught.value)
    assert {str(done) for done, _ in plan(example(), target(name)).accepted} >= {feature}


def test_plan__fair_sharing_only_where_two_levels_exist() -> None:
    policy = small(sharing="fair")
    assert plan(policy, target("linux")).group_weights == {"dnn": 50, "other": 50}
    for name in targets():
        if name != "linux":
            with pytest.raises(CannotExpressError, match="cannot express fair"):
                plan(policy, target(name))


def test_plan__percent_thresholds_that_collapse_are_rejected_whatever_the_tolerance() -> None:
    accept = "rounding_tolerance_percent: 49\naccept: {junos: {selective-drop: x, step-threshold: x, queue-limit: x}}"
    policy = small(s1="32768", s2="49152", l1="524288", l2="1048576", sharing="weighted", extra=accept)
    policy = policy.model_copy(update={"switch": policy.switch.model_copy(update={"queue_memory_bytes": 4 << 20})})
    with pytest.raises(CannotExpressError, match="collapse"):
        plan(policy, target("junos@qfx5120"))


def test_plan__a_threshold_between_units_is_rejected_without_tolerance() -> None:
    policy = small(s1="33000")
    with pytest.raises(CannotExpressError, match=names("front = 33000 B", "32768 B", "1024")):
        plan(policy, target("nxos"))
    near = small(s1="33000", extra="rounding_tolerance_percent: 1")
    detect = plan(near, target("nxos")).queues[1].random_detect
    assert detect is not None
    assert detect.min_bytes == 32768
    assert plan(policy, target("linux")).queues[1].random_detect is not None


@pytest.mark.parametrize("threshold", ["33000", "36868"])
def test_plan__the_tolerance_that_the_rejection_names_is_enough(threshold: str) -> None:
    with pytest.raises(CannotExpressError) as rejection:
        plan(small(s1=threshold), target("nxos"))
    (needed,) = re.findall(r"rounding_tolerance_percent to at least ([\d.]+)", str(rejection.value))
    assert float(needed) > 0
    plan(small(s1=threshold, extra=f"rounding_tolerance_percent: {needed}"), target("nxos"))


def test_plan__an_unknown_feature_in_accept_is_rejected() -> None:
    with pytest.raises(CannotExpressError, match="accept names 'speed'"):
        plan(small(extra="accept: {onyx: {speed: x}}"), target("onyx"))


def test_plan__above_max_drop_moves_the_ramp_end_to_the_limit() -> None:
    detect = plan(example(), target("os10")).queues[1].random_detect
    assert detect is not None
    assert (detect.min_bytes, detect.max_bytes) == (221184, 258048)


def test_shares__sum_exactly_and_fall() -> None:
    for total in (50, 33, 99, 7):
        for parts in (1, 3, 6):
            split = shares(total, parts)
            assert sum(split) == total
            assert list(split) == sorted(split, reverse=True)
            assert min(split) >= 1
    with pytest.raises(ValueError, match=names("2%", "3 classes")):
        shares(2, 3)
