"""Runs in the validators' own environment: prints, as JSON, the commands that Mellanox's Ansible modules would send.

Standard input: {"collections": folder, "ports": [...], "queues": [{"tc", "weight", "thresholds"}]}. The modules' reads
of the device return factory defaults, their writes are discarded. Imports nothing of mlt.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any
from unittest.mock import patch


class _Done(Exception):
    """Carries a module's return value."""


def _commands(basic: Any, module: Any, cls: Any, arguments: dict[str, Any], reads: dict[str, Any]) -> list[str]:
    def leave(self: Any, **result: Any) -> None:
        raise _Done(result)

    def fail(self: Any, msg: str, **_: Any) -> None:
        raise SystemExit(f"module refused: {msg}")

    encoded = json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode()
    with (
        patch.object(basic, "_ANSIBLE_ARGS", encoded),
        patch.object(basic, "_ANSIBLE_PROFILE", "legacy", create=True),
        patch.object(basic.AnsibleModule, "exit_json", leave),
        patch.object(basic.AnsibleModule, "fail_json", fail),
        patch("ansible_collections.mellanox.onyx.plugins.module_utils.network.onyx.onyx.load_config"),
    ):
        for name, answer in reads.items():
            setattr(cls, name, lambda self, *args, _answer=answer: _answer)
        try:
            cls.main()
        except _Done as done:
            return list(done.args[0].get("commands", []))
    return []


def main() -> None:
    request = json.load(sys.stdin)
    sys.path.insert(0, request["collections"])
    basic = import_module("ansible.module_utils.basic")
    prefix = "ansible_collections.mellanox.onyx.plugins.modules."
    classes = import_module(prefix + "onyx_traffic_class")
    qos = import_module(prefix + "onyx_qos")
    commands: list[str] = []
    for port in request["ports"]:
        name = f"Eth{port}"
        # Factory state: no congestion control, weighted round robin everywhere, trust layer 2.
        control: list[dict[str, str]] = [{}] + [{"Mode": "none"}] * 8
        rows = [{str(i): [{"S.Mode": "WRR", "W": "0"}] for i in range(8)}]
        ets = [{name: [{}, {}, {"ETS per TC": rows}]}]
        for queue in request["queues"]:
            arguments: dict[str, Any] = {"interfaces": [name], "tc": queue["tc"]}
            if queue["thresholds"] is not None:
                low, high = queue["thresholds"]
                arguments["congestion_control"] = {
                    "control": "both", "threshold_mode": "absolute", "min_threshold": low, "max_threshold": high,
                }  # fmt: skip
            weight = queue["weight"]
            arguments["dcb"] = {"mode": "strict"} if weight is None else {"mode": "wrr", "weight": weight}
            commands += _commands(
                basic,
                classes,
                classes.OnyxTrafficClassModule,
                arguments,
                {"_show_interface_congestion_control": control, "_show_interface_dcb_ets": ets},
            )
        state = [{name: [{"Trust mode": "L2", "PCP,DEI rewrite": "disabled", "DSCP rewrite": "disabled"}]}]
        commands += _commands(
            basic, qos, qos.OnyxQosModule, {"interfaces": [name], "trust": "L3"}, {"_show_interface_qos": state}
        )
    json.dump(commands, sys.stdout)


if __name__ == "__main__":
    main()
