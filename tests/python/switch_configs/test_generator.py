"""Every target writes the example as the golden file has it, means the policy, and agrees with every other target."""

from __future__ import annotations

import os
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlt.switch_configs.behaviour import differences
from mlt.switch_configs.check import check
from mlt.switch_configs.errors import MissingToolError, PolicyError
from mlt.switch_configs.generator import Generated, compare, generate
from mlt.switch_configs.policy import DataClass, Policy, Switch, Wred
from mlt.switch_configs.registry import targets
from switch_lab import EXAMPLE, GOLDEN, PORTS, example, example_for, small

# RED of every Spectrum ASIC takes multiples of it without rounding.
STEP = 36864
BUFFERS_APART = ("cumulus", "onyx", "sonic")


def written(policy: Policy, name: str) -> Generated:
    try:
        return generate(policy, name, ports=PORTS)
    except MissingToolError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("file", [*targets(), *(f"{name}-buffers" for name in BUFFERS_APART)])
def test_generate__matches_the_golden_file(file: str) -> None:
    """After a wanted change: MLT_UPDATE_GOLDEN=1 pytest, then read the diff."""
    name = file.removesuffix("-buffers")
    generated = written(example_for(name, buffers="keep" if name == file else "write"), name)
    files = {**generated.apply, **{f"{k} (undo)": v for k, v in generated.undo.items()}}
    text = "".join(f"==> {each} <==\n{body}" for each, body in files.items() if not each.endswith(".c"))
    golden = GOLDEN / f"{file}.txt"
    if os.environ.get("MLT_UPDATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_golden__none_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == {*targets(), *(f"{name}-buffers" for name in BUFFERS_APART)}


@pytest.mark.parametrize("name", list(targets()))
def test_generate__header_has_hash_apply_verify_undo_and_marks(name: str) -> None:
    generated = written(example_for(name), name)
    header = generated.apply.get("README.txt", next(iter(generated.apply.values())))
    assert example_for(name).digest() in header
    for word in ("apply:", "verify:", "undo:"):
        assert word in header
    left_out = {feature for feature, _ in generated.plan.accepted}
    doubtful = [f for f, s in generated.target.able.support.items() if s.level == "unconfirmed" and f not in left_out]
    if doubtful:
        assert "UNCONFIRMED" in header
    for feature, why in generated.plan.accepted:
        assert f"{feature}: {why}" in header.replace("\n" + generated.target.comment + "     ", " ")
    assert generated.apply == written(example_for(name), name).apply
    assert all(body.isascii() for body in generated.apply.values())


def test_generate__onyx_example_is_the_paper_testbed() -> None:
    folder = EXAMPLE.parent / "onyx"
    generated = generate(example(), "onyx")
    for file, body in {**generated.apply, **generated.undo}.items():
        assert (folder / file).read_text(encoding="utf-8") == body
    assert len(generated.plan.ports) == 16


def test_compare__all_pairs_agree_on_the_example() -> None:
    made = []
    for name in set(targets()) - {"junos", "srlinux"}:
        try:
            made.append(generate(example(), name, ports=PORTS))
        except MissingToolError:
            continue
    assert len(made) >= 7
    for left, right in combinations(made, 2):
        assert compare(left, right).unexplained == (), f"{left.target.name} against {right.target.name}"


def test_compare__finds_a_target_that_reads_another_policy() -> None:
    left = generate(small(), "sonic")
    right = generate(small(s1="43008", dscp1="44"), "onyx")
    features = {difference.feature for difference in compare(left, right).unexplained}
    assert {"min-threshold", "queue"} <= features


@pytest.mark.parametrize("sharing", ["fair", "weighted"])
def test_generate__other_sharing_reads_back(sharing: str) -> None:
    made = 0
    accept = "{step-threshold: x, queue-limit: x}"
    policy = small(sharing=sharing, extra=f"accept: {{eos: {accept}, os10: {{step-threshold: x}}}}")
    report = check(policy, names=list(targets()))
    for result in report.results:
        if result.generated is None:
            assert result.status in ("refused", "skipped")
            continue
        made += 1
        wrong = differences(result.generated.plan.intended(), result.generated.behaviour)
        assert wrong == []
    assert made == (1 if sharing == "fair" else len(report.results) - sum(r.generated is None for r in report.results))
    assert made >= (1 if sharing == "fair" else 5)
    assert all(pair.unexplained == () for pair in report.pairs)


def test_generate__an_unsound_policy_is_rejected_first() -> None:
    with pytest.raises(PolicyError, match="s-rising"):
        generate(small(s1="73728"), "onyx")


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Sound policies in steps that every target takes, with any number of classes and any free code points."""
    count = draw(st.integers(1, 6))
    steps = draw(st.lists(st.integers(2, 40), min_size=2 * count, max_size=2 * count))
    dscps = draw(st.lists(st.integers(1, 63).filter(lambda d: d != 48), min_size=count, max_size=count, unique=True))
    low, data = 0, []
    tops = [sum(steps[: index + 1]) for index in range(count)]
    gap = max(steps[count:]) + 4
    for index in range(count):
        low = tops[index] * STEP
        limit = (tops[index] + gap) * STEP
        wred = Wred(min_threshold_bytes=low)
        data.append(DataClass(name=f"c{index}", dscp=dscps[index], wred=wred, limit_bytes=limit))
    switch = Switch(
        queues=draw(st.integers(count + 2, 8)),
        shared_buffer_bytes=draw(st.integers(11, 14)) * 1024 * 1024,
        buffers=draw(st.sampled_from(["keep", "write"])),
        link_rate_bits_per_second=draw(st.sampled_from([10**9, 25 * 10**9, 10**11])),
        ports=draw(st.sampled_from([("1",), ("1-3",), ("7", "9")])),
    )
    accept = {name: {"step-threshold": "x", "queue-limit": "x"} for name in ("eos", "os10")}
    return Policy(switch=switch, data=tuple(data), accept=accept)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(policies())
def test_check__any_sound_policy_means_the_same_everywhere(policy: Policy) -> None:
    names = [name for name in targets() if name not in ("junos", "eos", "sonic", "srlinux")]
    report = check(policy, names=names)
    assert [(r.target, r.detail) for r in report.results if r.status != "ok"] == []
    assert all(pair.unexplained == () for pair in report.pairs)
    assert report.ok
