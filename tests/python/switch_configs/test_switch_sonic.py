"""SONiC: a release gets what its own updater takes, and the way back ends where it began."""

from __future__ import annotations

import copy
import json
import shlex
from typing import Any

import pytest
from checks import assert_names
from click.testing import CliRunner
from mlt.switch_configs.errors import CannotExpressError, ParseError
from mlt.switch_configs.generator import Generated, generate
from mlt.switch_configs.platforms import find
from mlt.switch_configs.vendors.sonic.updater import refusals, releases
from switch_lab import EXAMPLE, FACTORY, PORTS, example_for, small

from mlt.cli.switch import app

RUNNING = (FACTORY / "sonic.json").read_text(encoding="utf-8")
BEFORE: dict[str, Any] = {table: entries for table, entries in json.loads(RUNNING).items() if entries}
PATCHED = ("202511", "202605", "master")


def made(release: str, *, buffers: str = "keep", ports: tuple[str, ...] = PORTS) -> Generated:
    assert buffers in ("keep", "write")
    policy = example_for("sonic", buffers="write" if buffers == "write" else "keep")
    return generate(policy, f"sonic/{release}@mlnx-sn2100", ports=ports, running=RUNNING)


def patched(tables: dict[str, Any], text: str) -> dict[str, Any]:
    """RFC 6902 as a library would do it: a parent must exist, replace must find its target."""
    result = copy.deepcopy(tables)
    for step in json.loads(text):
        *above, name = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        parent = result
        for part in above:
            parent = parent[part]
        if step["op"] == "remove":
            del parent[name]
        else:
            assert (name in parent) == (step["op"] == "replace"), step["path"]
            parent[name] = step["value"]
    return result


def run_script(tables: dict[str, Any], files: dict[str, str], script: str) -> dict[str, Any]:
    """``sonic-db-cli`` deletes, ``config load`` merges fields; a table without entries is gone."""
    result = copy.deepcopy(tables)
    for line in files[script].splitlines():
        words = shlex.split(line, comments=True)
        if words[:3] == ["sonic-db-cli", "CONFIG_DB", "DEL"]:
            table, _, key = words[3].partition("|")
            del result[table][key]
        elif words[:3] == ["sonic-db-cli", "CONFIG_DB", "HDEL"]:
            table, _, key = words[3].partition("|")
            del result[table][key][words[4]]
        elif words[:3] == ["config", "load", "-y"]:
            for table, entries in json.loads(files[words[3]]).items():
                for key, entry in entries.items():
                    result.setdefault(table, {}).setdefault(key, {}).update(entry)
        else:
            assert words in ([], ["set", "-eu"]), line
    return {table: entries for table, entries in result.items() if entries}


def there_and_back(generated: Generated) -> tuple[dict[str, Any], dict[str, Any]]:
    if "patch.json" in generated.apply:
        after = patched(BEFORE, generated.apply["patch.json"])
        return after, patched(after, generated.undo["undo-patch.json"])
    after = run_script(BEFORE, generated.apply, "apply.sh")
    return after, run_script(after, generated.undo, "undo.sh")


@pytest.mark.parametrize("buffers", ["keep", "write"])
@pytest.mark.parametrize("release", releases())
def test_against__the_updater_of_the_release_allows_the_patch_or_none_is_written(release: str, buffers: str) -> None:
    generated = made(release, buffers=buffers)
    by_patch = release in PATCHED and buffers == "keep"
    assert ("patch.json" in generated.apply) == by_patch
    assert ("apply.sh" in generated.apply) == (not by_patch)
    after, back = there_and_back(generated)
    assert back == BEFORE
    platform = find("sonic", "mlnx-sn2100")
    illegal = refusals(BEFORE, after, release=release, platform=platform)
    illegal += refusals(after, BEFORE, release=release, platform=platform)
    assert bool(illegal) == (not by_patch)
    if not by_patch:
        assert "config apply-patch would refuse this" in generated.apply["README.txt"]
        assert "WRED_PROFILE" in illegal[0] or "BUFFER_POOL" in illegal[0]


@pytest.mark.parametrize(
    ("release", "path", "operation", "allowed"),
    [
        ("202305", "/WRED_PROFILE/mlt_q6", "add", False),
        ("202305", "/WRED_PROFILE/AZURE_LOSSLESS/green_min_threshold", "replace", True),
        ("202305", "/WRED_PROFILE/AZURE_LOSSLESS/ecn", "replace", False),
        ("202305", "/BUFFER_PROFILE/q_lossy_profile", "remove", False),
        ("202305", "/BUFFER_POOL/egress_lossy_pool/size", "replace", True),
        ("202305", "/QUEUE/Ethernet0|7", "add", True),
        ("202505", "/WRED_PROFILE/OTHER/green_min_threshold", "replace", True),
        ("202505", "/WRED_PROFILE/OTHER", "add", False),
        ("202511", "/WRED_PROFILE/OTHER", "add", True),
        ("202511", "/BUFFER_POOL/egress_lossy_pool/size", "replace", False),
        ("202511", "/BUFFER_PROFILE/mine", "add", True),
        ("202511", "/BUFFER_PROFILE", "add", False),
        ("master", "/BUFFER_PROFILE/q_lossy_profile/size", "replace", False),
    ],
)
def test_updater__rules_as_sonic_utilities_has_them(release: str, path: str, operation: str, allowed: bool) -> None:
    table, *rest = path.split("/")[1:]
    entry = {"pool": "egress_lossy_pool", "size": "1", "ecn": "x", "green_min_threshold": "1"}
    full: Any = {table: {"other": {"a": "b"}, **({rest[0]: entry} if rest else {})}}
    without = copy.deepcopy(full)
    if len(rest) == 2:
        without[table][rest[0]][rest[1]] = "2"
    elif rest:
        del without[table][rest[0]]
    else:
        without = {}
    before, after = (full, without) if operation == "remove" else (without, full)
    found = refusals(before, after, release=release, platform=find("sonic", "mlnx-sn2100"))
    assert (found == []) == allowed, found


def test_updater__an_unlisted_switch_is_allowed_nothing_and_an_empty_table_rejected() -> None:
    before, after = (
        {"WRED_PROFILE": {"A": {"green_min_threshold": "1"}}},
        {"WRED_PROFILE": {"A": {"green_min_threshold": "2"}}},
    )
    assert refusals(before, after, release="202505", platform=find("sonic"))
    assert not refusals(before, after, release="202505", platform=find("sonic", "mlnx-sn2100"))
    assert refusals({"QUEUE": {"a": {}}}, {"QUEUE": {}}, release="master", platform=find("sonic"))[0].startswith(
        "leaves"
    )
    # A release that is not listed has the rules of the oldest, which allow least.
    assert refusals({}, {"WRED_PROFILE": {"A": {}}}, release="209901", platform=find("sonic", "mlnx-sn2100"))


@pytest.mark.parametrize("release", ["202305", "202511"])
def test_against__ranges_are_split_and_given_back(release: str) -> None:
    policy = small(queues="5")
    generated = generate(policy, f"sonic/{release}@mlnx-sn2100", ports=("1",), running=RUNNING)
    after, back = there_and_back(generated)
    queues = {key.split("|")[1] for key in after["QUEUE"] if key.startswith("Ethernet0|")}
    # Ours are 4, 3, 2 and 0; the device's 0-2 and 5-6 keep what ours do not take.
    assert queues == {"0", "1", "2", "3", "4", "5-6"}
    assert after["QUEUE"]["Ethernet0|1"] == {"scheduler": "scheduler.0"}
    assert after["QUEUE"]["Ethernet0|4"] == {"scheduler": "mlt_strict"}
    assert after["QUEUE"]["Ethernet4|0-2"] == BEFORE["QUEUE"]["Ethernet4|0-2"]
    assert after["BUFFER_QUEUE"] == BEFORE["BUFFER_QUEUE"]
    assert back == BEFORE


def test_against__written_buffers_split_ranges_too() -> None:
    after, back = there_and_back(made("202511", buffers="write", ports=("1",)))
    mine = {key: entry for key, entry in after["BUFFER_QUEUE"].items() if key.startswith("Ethernet0|")}
    assert set(mine) == {f"Ethernet0|{queue}" for queue in range(8)}
    assert mine["Ethernet0|0"] == mine["Ethernet0|7"] == {"profile": "q_lossy_profile"}
    assert mine["Ethernet0|1"] == {"profile": "mlt_egress_q1"}
    assert back == BEFORE


@pytest.mark.parametrize("buffers", ["keep", "write"])
def test_against__the_undo_script_deletes_what_binds_before_what_is_bound(buffers: str) -> None:
    generated = made("202405", buffers=buffers)
    lines = [line for line in generated.undo["undo.sh"].splitlines() if not line.startswith("#")]
    deleted = [shlex.split(line)[3].split("|")[0] for line in lines if " DEL " in line]
    load = next(number for number, line in enumerate(lines) if line.startswith("config load"))
    for table in ("SCHEDULER", "WRED_PROFILE", "DSCP_TO_TC_MAP"):
        assert max(at for at, name in enumerate(deleted) if name == "QUEUE") < deleted.index(table)
        assert load < min(at for at, line in enumerate(lines) if f"{table}|" in line), (
            "PORT_QOS_MAP is bound until then"
        )
    if buffers == "write":
        assert deleted.index("BUFFER_QUEUE") < deleted.index("BUFFER_PROFILE") < deleted.index("BUFFER_POOL")


def test_against__what_others_own_stays_and_is_reported() -> None:
    generated = made("202511")
    after, _ = there_and_back(generated)
    for port in ("Ethernet0", "Ethernet4"):
        assert after["PORT_QOS_MAP"][port]["pfc_enable"] == "3,4"
        assert after["PORT_QOS_MAP"][port]["dscp_to_tc_map"] == "mlt"
    assert after["PORT_QOS_MAP"]["global"] == BEFORE["PORT_QOS_MAP"]["global"]
    # The control queue had no RED of its own and must not inherit any.
    assert "wred_profile" not in after["QUEUE"]["Ethernet0|7"]
    readme = generated.apply["README.txt"].replace("\n#     ", " ")
    assert "Ethernet0, Ethernet4 keep pfc_enable 3,4" in readme
    assert "sudo config interface pfc priority PORT 3 off; sudo config interface pfc priority PORT 4 off" in (
        " ".join(readme.split())
    )
    assert "QUEUE|Ethernet0|0-2" in readme
    assert "entries of several queues or ports are split" in readme
    untouched = set(BEFORE) - set(json.loads(generated.apply["config_db.json"]))
    assert all(after[table] == BEFORE[table] for table in untouched)


def test_against__the_readme_of_a_switch_with_many_ports_counts_instead_of_listing() -> None:
    """It listed every split: 96 lines for 32 ports."""
    names = tuple(f"Ethernet{4 * number}" for number in range(16))
    running = json.dumps(
        {
            "PORT": {name: {} for name in names},
            "QUEUE": {f"{name}|0-7": {"scheduler": "s"} for name in names},
            "PORT_QOS_MAP": {name: {"pfc_enable": "3,4"} for name in names},
            "SCHEDULER": {"s": {"type": "DWRR", "weight": "1"}},
        }
    )
    generated = generate(example_for("sonic"), "sonic/202511@mlnx-sn2100", ports=names, running=running)
    readme = " ".join(generated.apply["README.txt"].split())
    assert "QUEUE: 16 entries of several queues or ports are split (" in readme
    assert readme.count("Ethernet") < 40, readme
    with pytest.raises(ParseError, match="Ethernet1, Ethernet2, Ethernet3, Ethernet5 and 44 more"):
        generate(
            example_for("sonic"),
            "sonic",
            ports=tuple(f"Ethernet{number}" for number in range(64) if number % 4),
            running=running,
        )


@pytest.mark.parametrize(
    ("target", "port", "words"),
    [
        ("sonic@mlnx-sn2100", "swp3", "swp3: SONiC's ports are called Ethernet0, Ethernet4"),
        ("sonic", "1/1", "1/1: SONiC's ports are called Ethernet0, Ethernet4"),
        ("sonic@mlnx-sn2100", "etp1", "etp1: SONiC's ports are called"),
        (
            "sonic@mlnx-sn2100",
            "Ethernet1",
            "Ethernet1: ports of NVIDIA (Mellanox) SN2100 begin at Ethernet0, ",
        ),
        ("sonic@mlnx-sn4700", "Ethernet4", "Ethernet4: ports of NVIDIA SN4700 begin at Ethernet0, Ethernet8"),
    ],
)
def test_ports__names_the_device_cannot_have_are_rejected_without_running(target: str, port: str, words: str) -> None:
    policy = small(l1="135168", l2="270336", s1="36864", extra="accept: {sonic: {step-threshold: x}}")
    with pytest.raises(CannotExpressError) as caught:
        generate(policy, target, ports=(port,))
    assert words in str(caught.value)
    assert "--running" in str(caught.value)
    # Broken out, the switch has such ports: its own configuration decides.
    running = json.dumps({"PORT": {port: {}}})
    if port.startswith("Ethernet"):
        assert generate(policy, target, ports=(port,), running=running).plan.ports == (port,)


def test_against__a_port_the_switch_lacks_is_rejected() -> None:
    policy = example_for("sonic")
    with pytest.raises(ParseError, match="has no port Ethernet2"):
        generate(policy, "sonic/202511@mlnx-sn2100", ports=("Ethernet2",), running=RUNNING)


def test_generate__without_running_a_release_that_rejects_gets_no_patch() -> None:
    old = generate(example_for("sonic"), "sonic/202305@mlnx-sn2100", ports=PORTS)
    assert set(old.apply) == {"config_db.json", "README.txt"}
    assert old.undo == {}
    assert "--running" in old.apply["README.txt"]
    new = generate(example_for("sonic"), "sonic/202511@mlnx-sn2100", ports=PORTS)
    assert "patch.json" in new.apply
    assert not any("BUFFER" in step["path"] for step in json.loads(new.apply["patch.json"]))
    done = CliRunner().invoke(app, ["rollback", str(EXAMPLE), "-t", "sonic/202305@mlnx-sn2100"])
    assert done.exit_code == 1
    assert_names(done.output, "no undo", "--running")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (("wred_green_enable", "wred_gren_enable"), "unknown field 'wred_gren_enable'"),
        (('"type": "STRICT"', '"type": "PRIO"'), "'PRIO' is not one of DWRR, WRR, STRICT"),
        (('"green_drop_probability": "100"', '"green_drop_probability": "101"'), "not a number from 0 to 100"),
        (("Ethernet4|6", "Ethernet4|6-"), "not a key of the form"),
        (('"63": "0"', '"64": "0"'), "not a number from 0 to 63"),
    ],
)
def test_parse__yang_constraints_are_ours_to_check(edit: tuple[str, str], words: str) -> None:
    generated = generate(example_for("sonic"), "sonic", ports=PORTS)
    broken = generated.apply["config_db.json"].replace(*edit)
    assert broken != generated.apply["config_db.json"]
    with pytest.raises(ParseError) as caught:
        generated.target.parse({"config_db.json": broken})
    assert words in str(caught.value)
