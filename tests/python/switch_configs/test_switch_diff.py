"""``mlt switch diff`` reads a device's whole configuration: lines that are not QoS are skipped, QoS never."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from mlt.switch_configs.behaviour import Difference, by_port, condensed
from mlt.switch_configs.errors import SwitchConfigError
from mlt.switch_configs.generator import Generated, compare_device, generate
from switch_lab import EXAMPLE, FACTORY, PORTS, QFX, example_for

from mlt.cli.switch import app

DEVICES = {
    "sonic": ("sonic.json", "sonic/202511@mlnx-sn2100"),
    "eos": ("eos.txt", "eos@7060x"),
    "nxos": ("nxos.txt", "nxos"),
    "junos": ("junos.txt", "junos@qfx5120"),
    "cumulus": ("cumulus.txt", "cumulus/5.9@sn2100"),
}


def factory(system: str) -> str:
    return (FACTORY / DEVICES[system][0]).read_text(encoding="utf-8")


def made(system: str) -> Generated:
    pytest.importorskip("pyavd") if system == "eos" else None
    return generate(example_for(system), DEVICES.get(system, ("", system))[1], ports=PORTS)


def diff(policy: Path, other: Path, target: str, ports: str = "1,2") -> Result:
    return CliRunner().invoke(app, ["diff", str(policy), str(other), "-t", target, "--ports", ports])


@pytest.mark.parametrize("system", list(DEVICES))
def test_diff__a_factory_configuration_is_read_to_the_end(system: str) -> None:
    pytest.importorskip("pyavd") if system == "eos" else None
    file, target = DEVICES[system]
    done = diff(QFX if system == "junos" else EXAMPLE, FACTORY / file, target)
    assert done.exit_code == 1, done.output
    assert "meaning: port " in done.output
    counts = " ".join(done.stderr.split())
    assert f"(paper-testbed.yaml against {file})" in counts or system == "junos"
    assert "Traceback" not in done.output
    skipped = int(counts.rsplit("understood, ", 1)[1].split()[0])
    assert skipped >= 8
    for foreign in ("hostname", "bgp", "version", "vlan ", "65100"):
        assert f"unread: {foreign}" not in done.output


# What a person would say of each factory configuration against the policy, on the first port.
EXPECTED = {
    "sonic": (
        "port Ethernet0, Ethernet4 queue 3: scheduling: strict against weight 15%",
        "pfc_enable 3,4",
        "dynamic_th 3",
    ),
    "eos": (
        "port Ethernet1/1 queue 3: scheduling: strict against weight 40%",
        "port Ethernet1/1, Ethernet2/1 queue 7: queue: present",
    ),
    "nxos": ("port ethernet1/1 queue 3: drop-not-ect: True against False", "queue-limit dynamic 9"),
    "junos": ("port et-0/0/0 dscp 26: queue: 0 against 3", "port et-0/0/1: qos: set against none"),
    "cumulus": (
        "port swp1, swp2 queue 3: drop-not-ect: True against False",
        "port swp1, swp2 dscp 46: queue: 6 against 3",
    ),
}


@pytest.mark.parametrize("system", list(DEVICES))
def test_diff__names_the_differences_in_qos(system: str) -> None:
    pytest.importorskip("pyavd") if system == "eos" else None
    file, target = DEVICES[system]
    done = diff(QFX if system == "junos" else EXAMPLE, FACTORY / file, target)
    for words in EXPECTED[system]:
        assert words in done.output, done.output


@pytest.mark.parametrize("system", list(DEVICES))
def test_diff__a_device_that_took_our_configuration_has_none(system: str) -> None:
    """Ours in the middle of all else that a device has."""
    ours = made(system)
    if system == "sonic":
        tables = json.loads(factory(system))
        from test_switch_sonic import patched

        generated = generate(example_for(system), DEVICES[system][1], ports=PORTS, running=factory(system))
        text = json.dumps(patched(tables, generated.apply["patch.json"]))
    else:
        body = next(iter(ours.apply.values()))
        lines = [line for line in factory(system).splitlines() if "qos" not in line and "service-" not in line]
        kept = {
            "eos": lines[:21],
            "nxos": lines[:20],
            "junos": ["set version 23.4R2.13", "set system host-name leaf1", "set interfaces et-0/0/0 mtu 9216"],
            "cumulus": lines,
        }[system]
        text = "\n".join([*kept, body])
    found, reading = compare_device(ours, text, name="running")
    assert found == []
    assert [line for line in reading.unread if "colours differ" not in line] == []
    assert reading.skipped > 2


@pytest.mark.parametrize(
    ("system", "edit", "words"),
    [
        ("sonic", ('"wred_green_enable"', '"wred_gren_enable"'), "unknown field 'wred_gren_enable'"),
        ("sonic", ('"PORT_QOS_MAP": {', '"PORT_QOS_MAP": {"Ethernet2": {},'), ""),
        ("eos", ("uc-tx-queue 5", "uc-tx-queue 5\n      shape speed 4"), "'shape speed 4'"),
        ("nxos", ("    priority level 1", "    priority level 1\n    shape max 10 gbps"), "'shape max 10 gbps'"),
        ("junos", ("priority low;", "priority low;\n shaping-rate 1g;"), "shaping-rate 1g"),
        ("cumulus", ("red disable", "red maybe"), "ecn and red are enable or disable"),
    ],
)
def test_diff__a_qos_statement_that_is_not_understood_is_said(system: str, edit: tuple[str, str], words: str) -> None:
    text = factory(system)
    assert edit[0] in text
    _, reading = compare_device(made(system), text.replace(*edit), name="running")
    assert any(words in line for line in reading.unread) or not words


@pytest.mark.parametrize("system", ["sonic", "eos", "cumulus"])
def test_diff__a_port_that_the_device_lacks_is_a_difference(system: str, tmp_path: Path) -> None:
    pytest.importorskip("pyavd") if system == "eos" else None
    text = factory(system)
    if system == "sonic":
        tables = json.loads(text)
        del tables["PORT"]["Ethernet4"], tables["PORT_QOS_MAP"]["Ethernet4"]
        text = json.dumps(tables)
    elif system == "eos":
        text = text.replace("interface Ethernet2/1\n", "interface Ethernet7/1\n")
    else:
        text = text.replace("swp1-16", "swp1").replace("swp1-8", "swp1").replace("swp1-2", "swp1")
    file = tmp_path / "running.txt"
    file.write_text(text, encoding="utf-8")
    done = diff(EXAMPLE, file, DEVICES[system][1])
    assert ": port: present against absent" in done.output


def test_diff__junos_reads_display_set_as_well() -> None:
    lines = [
        "set version 23.4R2.13",
        "set class-of-service classifiers dscp site forwarding-class storage loss-priority low code-points ef",
        "set class-of-service classifiers dscp site forwarding-class storage loss-priority low code-points 011010",
        "set class-of-service drop-profiles dp interpolate fill-level 10",
        "set class-of-service drop-profiles dp interpolate fill-level 50",
        "set class-of-service drop-profiles dp interpolate drop-probability 0",
        "set class-of-service drop-profiles dp interpolate drop-probability 80",
        "set class-of-service forwarding-classes class storage queue-num 3",
        "set class-of-service interfaces et-0/0/0 scheduler-map site",
        "set class-of-service interfaces et-0/0/0 unit 0 classifiers dscp site",
        "set class-of-service scheduler-maps site forwarding-class storage scheduler s",
        "set class-of-service schedulers s priority low",
        "set class-of-service schedulers s transmit-rate percent 60",
        "set class-of-service schedulers s drop-profile-map loss-priority any protocol any drop-profile dp",
    ]
    found, reading = compare_device(made("junos"), "\n".join(lines), name="running")
    assert reading.unread == []
    assert "port et-0/0/0 dscp 46: queue: 6 against 3" in [str(each) for each in found]
    assert reading.skipped == 1


def test_condensed__code_points_in_a_row_that_differ_alike_share_a_line() -> None:
    def at(where: str, left: str = "0", right: str = "1") -> Difference:
        return Difference(where, "queue", left, right)

    found = [at(f"port swp1 dscp {dscp}") for dscp in (0, 1, 2, 5)]
    found += [at("port swp1 dscp 6", "2"), at("port swp2 dscp 7", "2"), at("port swp2 queue 3")]
    assert condensed(found) == [
        "port swp1 dscp 0-2: queue: 0 against 1",
        "port swp1 dscp 5: queue: 0 against 1",
        "port swp1 dscp 6: queue: 2 against 1",
        "port swp2 dscp 7: queue: 2 against 1",
        "port swp2 queue 3: queue: 0 against 1",
    ]


def test_by_port__ports_that_differ_alike_share_a_line() -> None:
    lines = [
        "port swp1 queue 3: qos: set against none",
        "swp1 queue 3: limit",
        "port swp10 queue 3: qos: set against none",
        "port swp1 queue 4: qos: set against none",
        "hostname swp1",
        "swp10 queue 3: limit",
        "hostname swp1",
    ]
    assert by_port(lines, ("swp1", "swp10")) == [
        "port swp1, swp10 queue 3: qos: set against none",
        "swp1, swp10 queue 3: limit",
        "port swp1 queue 4: qos: set against none",
        "hostname swp1",
    ]
    assert by_port(["port swp1: x", "port swp1: x"], ()) == ["port swp1: x"]


def test_by_port__many_ports_are_counted_where_a_line_is_about_all_of_them() -> None:
    """Every line listed the sixteen ports of a switch whole."""
    ports = [f"Ethernet{4 * number}" for number in range(16)]
    every = [f"{before}{port}: x" for before in ("port ", "") for port in ports]
    some = [f"port {port}: y" for port in ports[1:]]
    assert by_port([*every, *some], ports) == [
        "every port (16): x",
        "every port (16): x",
        f"port {', '.join(ports[1:])}: y",
    ]


@pytest.mark.parametrize(
    ("system", "text", "words"),
    [
        ("sonic", "hostname leaf1\n", "running.txt: not JSON at line 1: expected a value: 'hostname leaf1'"),
        ("sonic", '{"PORT": {}}\n}', "running.txt: not JSON at line 2: text after the end: '}'"),
        ("sonic", "[1]", "running.txt: JSON"),
        ("sonic", " \n", "running.txt: empty"),
        ("openconfig", "{}", "running.txt: openconfig-qos:qos is missing"),
        ("eos", '{"PORT": {}}', "running.txt: it is JSON"),
    ],
)
def test_diff__what_is_not_the_system_s_configuration_is_named(system: str, text: str, words: str) -> None:
    """It blamed line 1 of a config_db.json that did not exist, and took a list for tables."""
    with pytest.raises(SwitchConfigError) as refused:
        compare_device(made(system), text, name="running.txt")
    assert words in str(refused.value)
    if "missing" not in words:
        assert "reads " in str(refused.value)


def test_diff__another_policy_is_written_for_the_same_device(tmp_path: Path) -> None:
    """A policy fresh from --layers names no targets: it was written for no platform, and refused."""
    ours = EXAMPLE.read_text(encoding="utf-8")
    fresh = tmp_path / "fresh.yaml"
    fresh.write_text(re.sub(r"(?ms)^targets:.*?^switch:", "switch:", ours), encoding="utf-8")
    done = diff(EXAMPLE, fresh, "sonic")
    assert done.exit_code == 0, done.output


def test_diff__onyx_alpha_quotas_are_not_bytes() -> None:
    ours = generate(example_for("onyx", buffers="write"), "onyx@sn2100", ports=("1",))
    body = re.sub(
        r"(ePort\.tc6 map pool) mlt (reserved 1500 shared) size \d+",
        r"\1 ePool0 \2 alpha 8",
        "\n".join(ours.apply.values()),
    )
    running = "\n".join(["##", "hostname leaf1", *(f"   {line}" for line in body.splitlines()), "   ntp enable"])
    found, reading = compare_device(ours, running, name="running")
    limit = ours.plan.queues[1].limit_bytes
    assert [str(each) for each in found] == [f"port 1/1 queue 6: queue-limit: {limit} B against alpha 8 of ePool0"]
    assert "1/1 queue 6: limit alpha 8 of ePool0" in reading.kept


def test_diff__cumulus_names_settings_that_override_the_policy(tmp_path: Path) -> None:
    """RoCE mode, a port's own mapping and PFC were neither read nor skipped nor said."""
    body = next(iter(made("cumulus").apply.values()))
    more = "nv set qos roce mode lossless\nnv set interface swp1 qos mapping profile p\n"
    pfc = "nv set qos pfc default-global switch-priority 3\n"
    (tmp_path / "running.txt").write_text(more + pfc + body, encoding="utf-8")
    done = diff(EXAMPLE, tmp_path / "running.txt", "cumulus/5.9@sn2100")
    assert done.exit_code == 1
    assert "'roce' is not read here" in done.output
    assert "interface swp1 qos: 'mapping' is not read here" in done.output
    assert "kept: qos pfc" in done.output
