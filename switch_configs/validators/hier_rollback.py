"""Runs in the validators' own environment: applies mlt's undo to a running configuration with hier-config.

Standard input: {"platform", "running": lines, "undo": lines}. Prints {"left": remaining lines, "remediation": the lines
that hier-config itself would send to reach an empty configuration}. Imports nothing of mlt.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any


def main() -> None:
    request = json.load(sys.stdin)
    hier: Any = import_module("hier_config")
    platform = getattr(hier.Platform, request["platform"])
    driver = hier.get_hconfig_driver(platform)
    running = hier.get_hconfig(driver, "\n".join(request["running"]))
    remediation = hier.WorkflowRemediation(running, hier.get_hconfig(driver, "")).remediation_config
    undo = hier.get_hconfig(driver, "\n".join(request["undo"]))
    after = running.future(undo)
    left = [line.cisco_style_text() for line in after.all_children_sorted()]
    # An interface is hardware: its empty section always stays.
    hardware = [line for line in left if line.startswith("interface ")]
    kept = [line for line in left if line not in hardware and not line.strip().startswith("no ")]
    wanted = [line.cisco_style_text() for line in remediation.all_children_sorted()]
    json.dump({"left": kept, "remediation": wanted}, sys.stdout)


if __name__ == "__main__":
    main()
