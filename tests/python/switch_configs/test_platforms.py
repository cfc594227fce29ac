"""Platform and release are part of a target: sourced facts, errors with a fix, rounding as the device does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from checks import assert_names, names
from click.testing import CliRunner
from mlt.switch_configs import platforms as facts_package
from mlt.switch_configs.errors import CannotExpressError, ParseError, PolicyError, SwitchConfigError
from mlt.switch_configs.generator import device, generate, plan
from mlt.switch_configs.platforms import Spec, find, parse_spec, platforms
from mlt.switch_configs.policy import Policy, expand_ports, parse
from mlt.switch_configs.registry import target, targets
from switch_lab import example, small, text

from mlt.cli.switch import app

SYSTEMS = sorted(path.stem for path in Path(facts_package.__file__).parent.glob("facts/*.yaml") if path.stem != "asics")
EVERY = [(system, name) for system in SYSTEMS for name in (None, *platforms(system))]


def problems(policy: Policy, spec: str, **options: tuple[str, ...]) -> str:
    with pytest.raises(CannotExpressError) as caught:
        plan(policy, target(spec), **options)
    return str(caught.value)


@pytest.mark.parametrize(("system", "name"), EVERY)
def test_facts__each_has_a_source(system: str, name: str | None) -> None:
    platform = find(system, name)
    assert platform.statements()
    for what, fact in platform.statements():
        assert len(fact.source) > 8, what
        assert "http" not in fact.source
        # A value without a source is not a fact.
        doubtful = re.search(r"from memory|second-hand|no (vendor )?(document|page)[\w ]* found|assumed", fact.source)
        assert not (doubtful and fact.confirmed), what


@pytest.mark.parametrize("system", SYSTEMS)
def test_facts__the_unknown_platform_is_the_most_restrictive(system: str) -> None:
    unknown = find(system, "no-such-model")
    assert not unknown.known
    assert unknown.port_count is None
    assert any("no-such-model" in note and "most restrictive" in note for note in unknown.notes())
    for name in platforms(system):
        known = find(system, name)
        # The software switch counts bytes; the unknown one must be at least as coarse as any.
        assert unknown.red_unit_bytes >= known.red_unit_bytes
        if known.facts.strict_queues is not None and unknown.facts.strict_queues is not None:
            assert unknown.facts.strict_queues.value <= known.facts.strict_queues.value
        if known.facts.buffer_bytes is not None and unknown.facts.buffer_bytes is not None:
            assert unknown.facts.buffer_bytes.value <= known.facts.buffer_bytes.value


def test_facts__what_another_asic_does_is_not_a_fact_of_this_one() -> None:
    """The Tomahawk's RED was said to be rounded as mlxsw's driver does."""
    facts = dict(find("sonic", "7060cx").statements())
    for name in ("cell_bytes", "red_step_cells", "red_rounding"):
        assert not facts[name].confirmed, name
        assert_names(facts[name].source, "cautious", "Spectrum-4")
    assert facts["ports"].confirmed
    pools = dict(find("cumulus", "sn3700").statements())["default_pools"]
    assert pools.confirmed
    assert pools.source.startswith("Cumulus Linux 5.9")
    known = dict(find("sonic", "mlnx-sn2700").statements())
    assert known["red_step_cells"].confirmed
    assert known["red_step_cells"].source.startswith("Linux mlxsw")


def test_parse_spec__system_release_platform() -> None:
    assert parse_spec("sonic/202511@mlnx-sn2700") == Spec("sonic", "202511", "mlnx-sn2700")
    assert [str(parse_spec(each)) for each in ("cumulus/5.9@sn3700", "junos@qfx5120", "eos")] == [
        "cumulus/5.9@sn3700",
        "junos@qfx5120",
        "eos",
    ]
    for bad in ("", "sonic/", "sonic@", "SONIC@x", "sonic/1/2"):
        with pytest.raises(SwitchConfigError, match=r"system\[/release\]\[@platform\]"):
            parse_spec(bad)


def test_find__aliases_and_case() -> None:
    assert find("sonic", "ACS-MSN2700").name == "mlnx-sn2700"
    assert find("junos", "qfx10002").name == "qfx10000"
    assert find("os10", "s5248").known is False
    assert find("linux-ebpf").known


def test_target__a_bare_name_means_the_device_the_policy_names() -> None:
    assert str(device(small(), "sonic").spec) == "sonic/202511@mlnx-sn2100"
    assert str(device(small(), "sonic@sn5600").spec) == "sonic@sn5600"
    with pytest.raises(PolicyError, match="one device per system"):
        parse(text().replace("[sonic/202511@mlnx-sn2100,", "[sonic@sn5600, sonic/202511@mlnx-sn2100,"))


@pytest.mark.parametrize(
    ("model", "names"),
    [("mlnx-sn2100", ("Ethernet0", "Ethernet8")), ("mlnx-sn4700", ("Ethernet0", "Ethernet16"))],
)
def test_ports__sonic_numbers_by_the_lanes_of_the_platform(model: str, names: tuple[str, ...]) -> None:
    assert plan(small(), target(f"sonic@{model}"), ports=("1", "3")).ports == names


def test_ports__sonic_numbers_need_a_platform_and_names_do_not() -> None:
    policy = small(l1="135168", l2="270336", extra="accept: {sonic: {step-threshold: x}}")
    assert "lanes" in problems(policy, "sonic", ports=("3",))
    assert plan(policy, target("sonic"), ports=("Ethernet8",)).ports == ("Ethernet8",)


@pytest.mark.parametrize(
    ("spec", "port"),
    [
        ("sonic@mlnx-sn2100", "100"),
        ("sonic@mlnx-sn2100", "Ethernet64"),
        ("onyx@sn2100", "17"),
        ("onyx@sn2100", "1/40"),
        ("cumulus@sn2100", "swp17"),
    ],
)
def test_ports__beyond_the_platform_are_rejected(spec: str, port: str) -> None:
    assert f"has 16 ports, not {port}" in problems(small(), spec, ports=("1", port))
    assert plan(small(), target(spec), ports=("16",)).ports


@pytest.mark.parametrize(
    ("spec", "ports", "names"),
    [
        ("eos@7060x", ("1", "32", "33"), ("Ethernet1/1", "Ethernet32/1", "Ethernet33")),
        ("eos@7050sx3", ("1", "48", "49"), ("Ethernet1", "Ethernet48", "Ethernet49/1")),
        ("eos", ("1",), ("Ethernet1",)),
        ("sonic@7060cx", ("1", "32", "33", "34"), ("Ethernet0", "Ethernet124", "Ethernet128", "Ethernet132")),
    ],
)
def test_ports__are_called_as_the_model_calls_them(spec: str, ports: tuple[str, ...], names: tuple[str, ...]) -> None:
    """EOS wrote "interface Ethernet1" for a port that is Ethernet1/1; SONiC refused this model's last two ports."""
    extra = "accept: {eos: {step-threshold: x, queue-limit: x}, sonic: {step-threshold: x}}"
    policy = small(extra=extra, l1="135168", l2="270336")
    assert plan(policy, target(spec), ports=ports).ports == names


@pytest.mark.parametrize("name", sorted(targets()))
def test_facts__every_system_has_models_or_a_reason(name: str) -> None:
    done = CliRunner().invoke(app, ["facts", name])
    assert done.exit_code == 0
    assert "platforms of" in done.stderr or "no model is described: " in done.stderr
    assert len(find(name).statements()) >= 1


def test_ports__a_rejection_of_many_stays_short() -> None:
    refusal = problems(small(), "cumulus@sn2100", ports=tuple(str(port) for port in range(1, 85)))
    assert_names(refusal, "16 ports", "17, 18, 19, 20 and 64 more")
    assert "84" not in refusal


@pytest.mark.parametrize("bad", ["0", "0-3", "Ethernet0-12", "swp1-4", "Ethernet0-Ethernet12", "Ethernet1/1-1/4"])
def test_expand_ports__zero_and_ranges_of_names_are_rejected(bad: str) -> None:
    with pytest.raises(ValueError, match="port"):
        expand_ports((bad,))


def test_expand_ports__a_name_may_hold_zero_and_a_dash() -> None:
    assert expand_ports(("et-0/0/0", "Ethernet0", "1-2")) == ("et-0/0/0", "Ethernet0", "1", "2")


def test_rounding__red_is_rounded_up_to_64_cells_and_checked_after() -> None:
    policy = small(s1="40960")
    refusal = problems(policy, "sonic@mlnx-sn2100")
    assert_names(refusal, "front = 40960 B", "43008 B", "5% off")
    assert "6144 B (RED of NVIDIA (Mellanox) SN2100)" in refusal
    near = small(s1="40960", extra="rounding_tolerance_percent: 5")
    for spec, low in (("sonic@mlnx-sn2100", 43008), ("cumulus@sn2100", 43008), ("onyx@sn2100", 43008)):
        resolved = plan(near, target(spec))
        detect = resolved.queues[1].random_detect
        assert detect is not None
        assert detect.min_bytes == low
        assert any("40960 B is 43008 B here" in note for note in resolved.notes)
    # The next generation has larger cells: 64 x 144 B.
    detect = plan(small(s1="46080"), target("cumulus@sn3700")).queues[1].random_detect
    assert detect is not None
    assert detect.min_bytes == 46080
    assert "(RED of NVIDIA SN2700)" in problems(small(s1="46080"), "cumulus@sn2700")


def test_buffer__more_than_the_platform_has_is_rejected() -> None:
    assert "Arista 7060X (7060CX-32S) has 4194304 B" in problems(small(buffer="8388608"), "eos@7060x")


def test_release__older_than_the_commands_is_rejected() -> None:
    assert "release 5.3 is older than 5.4" in problems(small(), "cumulus/5.3@sn2100")
    assert plan(small(), target("cumulus/5.9@sn2100"))


def test_junos__is_rejected_without_a_platform() -> None:
    assert "junos: needs a platform" in problems(small(), "junos")
    assert "one of qfx5100, qfx5120, qfx5200, qfx10000" in problems(small(), "junos@mx480")


@pytest.mark.parametrize("model", ["qfx5100", "qfx5120", "qfx5200", "qfx10000"])
def test_junos__no_qfx_serves_the_paper_and_each_names_its_alternatives(model: str) -> None:
    refusal = problems(example(), f"junos@{model}")
    assert "cannot express selective-drop" in refusal
    assert "Not-ECT" in refusal
    assert_names(refusal, "1 strict queue", "7")
    assert "tail drop by class" in refusal
    assert "switch.queue_memory_bytes" in refusal


def written(policy: Policy) -> Policy:
    return policy.model_copy(update={"switch": policy.switch.model_copy(update={"buffers": "write"})})


@pytest.mark.parametrize(
    ("name", "limits"),
    [("onyx@sn2100", "egress-buffer"), ("sonic@mlnx-sn2100", '"BUFFER_'), ("cumulus@sn2100", "advance-buffer-config")],
)
def test_accept__acts_on_unconfirmed(name: str, limits: str) -> None:
    """It was ignored without a message, so the buffers could not be left out."""
    accept = f"accept: {{{name.partition('@')[0]}: {{queue-limit: the pool is the limit}}}}"
    generated = generate(written(small(extra=accept)), name)
    assert limits not in "".join(generated.apply.values())
    assert_names("".join(generated.apply.values()), "queue-limit", "pool")
    assert limits in "".join(generate(written(small()), name).apply.values())


def test_buffers__onyx_default_pools_are_left_alone() -> None:
    """The default pool was rewritten, and with it every port's."""
    lines = generate(written(small()), "onyx@sn2100").apply["onyx.apply.txt"].splitlines()
    assert [line for line in lines if line.startswith("pool ")] == ["pool mlt size 4194304 type static"]
    assert not any("ePool0" in line for line in lines)


def test_buffers__cumulus_pools_share_the_memory() -> None:
    """A second pool of 100 percent stood beside the default pool's 100; NVUE wants 100 in all."""
    generated = generate(written(small()), "cumulus@sn2100")
    script = generated.apply["cumulus.apply.sh"]
    shares = [int(share) for share in re.findall(r"egress-pool \d memory-percent (\d+)", script)]
    assert len(shares) == 2
    assert sum(shares) == 100
    alone = "\n".join(line for line in script.splitlines() if "egress-pool 0" not in line)
    with pytest.raises(ParseError, match=names("memory-percent", "125", "100")):
        generated.target.parse({"cumulus.apply.sh": alone})


def test_accept__is_never_ignored() -> None:
    idle = plan(small(extra="accept: {onyx: {strict-priority: x, fair: x}}"), target("onyx@sn2100"))
    assert any("accept strict-priority: without effect" in note for note in idle.notes)
    assert any("accept fair: without effect" in note for note in idle.notes)


def test_accept__an_unknown_target_is_an_error() -> None:
    from mlt.switch_configs.semantics import require_sound

    with pytest.raises(PolicyError, match="accept names unknown target 'sonc'"):
        require_sound(small(extra="accept: {sonc: {queue-limit: x}}"), source="p.yaml")


def test_accept__by_platform_and_release() -> None:
    extra = "accept: {'eos@7060x': {step-threshold: ramp, queue-limit: pool}}"
    assert plan(small(extra=extra), target("eos/4.31@7060x")).accepted
    assert "cannot express" in problems(small(extra=extra), "eos")


@pytest.mark.parametrize("name", ["sonic", "onyx", "cumulus"])
def test_buffers__are_written_only_when_requested(name: str) -> None:
    kept = generate(small(), name)
    assert all(queue.limit_bytes is None for queue in kept.plan.queues)
    assert "switch.buffers is keep" in " ".join(kept.apply.values()).replace("\n##", "").replace("\n#", "")
    policy = small()
    written = policy.model_copy(update={"switch": policy.switch.model_copy(update={"buffers": "write"})})
    assert any(queue.limit_bytes for queue in generate(written, name).plan.queues)


def test_policy__obvious_spellings_are_accepted() -> None:
    policy = parse(text(dscp1="ef", dscp2="AF11", control="{dscp: cs6}", s1="36KiB", l1="128 KiB", rate="100gbit"))
    assert policy.class_to_dscp() == (46, 10)
    assert policy.control.dscp == 48
    assert policy.data[0].wred.min_threshold_bytes == 36864
    assert policy.data[0].limit_bytes == 131072
    assert policy.switch.link_rate_bits_per_second == 100_000_000_000
    assert parse(text(s1="40KB")).data[0].wred.min_threshold_bytes == 40_000
    for bad, words in (
        (text(dscp1="eff"), "a number from 0 to 63 or a name"),
        (text(s1="40 k"), "expected a size such as 256KiB"),
    ):
        with pytest.raises(PolicyError, match=words):
            parse(bad)


def test_rounding__an_assumed_unit_is_said_to_be_one() -> None:
    extra = "accept: {sonic: {step-threshold: x}}"
    assert "units of 12288 B (assumed of Arista 7060CX-32S: " in problems(
        small(s1="40960", extra=extra), "sonic@7060cx"
    )


def test_header__without_models_does_not_require_one() -> None:
    text_ = " ".join(
        generate(small(extra="accept: {os10: {step-threshold: x}}"), "os10").apply["os10.apply.txt"].split()
    )
    assert "os10@PLATFORM" not in text_
    assert_names(text_, "no model", "os10")


def test_header__names_the_device() -> None:
    text_ = generate(small(), "cumulus/5.9@sn3700").apply["cumulus.apply.sh"]
    assert "# target cumulus/5.9@sn3700: NVIDIA SN3700" in text_
    unknown = generate(small(), "cumulus@lab-box").apply["cumulus.apply.sh"].replace("\n#", "")
    assert "most restrictive facts" in " ".join(unknown.split())
    assert "known: sn2100, sn2700" in unknown


def test_targets__every_one_binds_to_a_platform() -> None:
    for name in targets():
        bound = target(f"{name}/1@some-model")
        assert (bound.spec.release, bound.platform.asked) == ("1", "some-model")


@pytest.mark.parametrize(("system", "name"), EVERY)
def test_generate__every_platform_takes_few_classes_or_names_the_rejected_feature(
    system: str, name: str | None
) -> None:
    """Fewer classes than queues, on every model: what is written means the policy, or says what the device lacks."""
    pytest.importorskip("pyavd") if system == "eos" else None
    lacking = "{queue-limit: x, step-threshold: x, selective-drop: x, strict-priority: x, ecn-on-strict: x}"
    policy = small(extra=f"rounding_tolerance_percent: 25\naccept: {{{system}: {lacking}}}")
    policy = policy.model_copy(update={"switch": policy.switch.model_copy(update={"queue_memory_bytes": 4194304})})
    spec = system if name is None else f"{system}@{name}"
    if name is None and system in ("junos", "sonic"):
        assert "platform" in problems(policy, spec)
        return
    generated = generate(policy, spec)
    assert {port: len(built.queues) for port, built in generated.behaviour.items()} == {generated.plan.ports[0]: 4}
