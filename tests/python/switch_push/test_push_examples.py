"""The example role and topology are read, not run: their YAML, the options they pass, the inventory by our reader."""

from __future__ import annotations

from typing import Any

import yaml
from click import Command
from push_lab import ROOT

from mlt.cli.switch_apply import apply
from mlt.switch_push.login import find

SWITCH = ROOT / "examples" / "switch"


def loaded(*parts: str) -> Any:
    return yaml.safe_load(SWITCH.joinpath(*parts).read_text(encoding="utf-8"))


def test_role__passes_options_that_exist_and_no_secret() -> None:
    tasks = loaded("ansible", "roles", "mlt_switch", "tasks", "main.yml")
    words = [word for task in tasks for word in task.get("vars", {}).get("mlt_switch_argv", [])]
    assert isinstance(apply, Command)
    known = {option for parameter in apply.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known
    assert {"--dry-run", "--confirm", "--keep-if"} <= known
    assert not any("password" in word for word in words)


def test_inventory__is_one_that_apply_reads() -> None:
    found = find("ceos1", inventory=SWITCH / "ansible" / "inventory.yml", environ={})
    assert (found.host, found.port, found.user, found.password) == ("clab-mlt-ceos1", 443, "admin", None)


def test_topology__two_and_two_and_every_link_has_two_known_ends() -> None:
    topology = loaded("containerlab", "mlt.clab.yml")["topology"]
    kinds = [node["kind"] for node in topology["nodes"].values()]
    assert (kinds.count("sonic-vs"), kinds.count("arista_ceos")) == (2, 2)
    ends = [end for link in topology["links"] for end in link["endpoints"]]
    assert len(ends) == len(set(ends)) == 16
    assert {end.split(":")[0] for end in ends} == set(topology["nodes"])
