"""The example role and topology are read, not run: their YAML, the options they pass, the inventory by our reader."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from click import Command
from mlt.switch_configs.generator import generate
from mlt.switch_configs.policy import expand_ports, load
from push_lab import ROOT

from mlt.cli.switch_apply import apply
from mlt.switch_push.login import find

SWITCH = ROOT / "examples" / "switch"


def loaded(*parts: str) -> Any:
    return yaml.safe_load(SWITCH.joinpath(*parts).read_text(encoding="utf-8"))


def test_role__passes_options_that_exist_and_no_secret() -> None:
    tasks = loaded("ansible", "roles", "mlt_switch", "tasks", "main.yml")
    words = [word for task in tasks for word in task.get("vars", {}).get("mlt_switch_argv", [])]
    words += re.findall(r"--[a-z-]+", " ".join(task.get("vars", {}).get("mlt_switch_more", "") for task in tasks))
    assert isinstance(apply, Command)
    known = {option for parameter in apply.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known
    assert {"--dry-run", "--confirm", "--keep-if"} <= known
    assert not any("password" in word for word in words)


def test_inventory__is_one_that_apply_reads() -> None:
    found = find("ceos1", inventory=SWITCH / "ansible" / "inventory.yml", environ={})
    assert (found.host, found.port, found.user, found.password) == ("clab-mlt-ceos1", 443, "admin", None)
    assert found.options == {"enforce_verification": False}


def test_inventory__every_host_s_target_takes_the_policy_on_its_ports() -> None:
    pytest.importorskip("pyavd")
    policy = load(SWITCH / "paper-testbed.yaml")
    for name, entry in loaded("ansible", "inventory.yml")["switches"]["hosts"].items():
        ports = entry.get("mlt_switch_ports")
        plan = generate(policy, entry["mlt_switch_target"], ports=ports and expand_ports((ports,))).plan
        if name.startswith("ceos"):
            assert plan.ports == ("Ethernet1", "Ethernet2", "Ethernet3")


def test_topology__two_and_two_and_every_link_has_two_known_ends() -> None:
    topology = loaded("containerlab", "mlt.clab.yml")["topology"]
    kinds = [node["kind"] for node in topology["nodes"].values()]
    assert (kinds.count("sonic-vs"), kinds.count("arista_ceos")) == (2, 2)
    ends = [end for link in topology["links"] for end in link["endpoints"]]
    assert len(ends) == len(set(ends)) == 16
    assert {end.split(":")[0] for end in ends} == set(topology["nodes"])
