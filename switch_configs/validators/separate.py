"""Validators in separate processes: yanglint with the NX-OS model, Mellanox's Ansible modules, hier-config.

tools/install_switch_validators.sh installs their dependencies (besides the system package libyang2-tools).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from mlt.switch_configs.generator import Generated
from mlt.switch_configs.target import code_lines
from mlt.switch_configs.validators import Validator, home, number_or_text

_HERE = Path(__file__).parent
_INSTALL = "tools/install_switch_validators.sh"
_TIMEOUT_S = 60


def _run(command: list[str], stdin: str = "") -> tuple[int, str, str]:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    return done.returncode, done.stdout, done.stderr


class NxosYang(Validator):
    """Cisco's own YANG model validates the tree equivalent to the CLI text (not the CLI's wording)."""

    name: ClassVar[str] = "nxos-yang"
    targets: ClassVar[tuple[str, ...]] = ("nxos",)

    def missing(self) -> str:
        if shutil.which("yanglint") is None:
            return "yanglint is not installed (system package libyang2-tools)"
        return "" if (home() / "nxos-yang").is_dir() else f"the NX-OS YANG model is not here ({_INSTALL})"

    def problems_of(self, generated: Generated, files: Mapping[str, str]) -> list[str]:
        tree, leftover = _nxos_tree("\n".join(files.values()))
        yang = home() / "nxos-yang"
        with tempfile.TemporaryDirectory() as folder:
            instance = Path(folder) / "nxos.json"
            instance.write_text(json.dumps(tree), encoding="utf-8")
            model = str(yang / "Cisco-NX-OS-device.yang")
            code, _, errors = _run(["yanglint", "-p", str(yang), model, "-t", "config", str(instance)])
        said = [line for line in errors.splitlines() if "err" in line.lower()][:3]
        problems = (said or [errors[:200] or f"yanglint ended with {code}"]) if code else []
        return problems + [f"no place in the model: {line}" for line in leftover]


_NXOS_DETECT = re.compile(
    r"random-detect (non-ecn )?minimum-threshold (\S+) (\S+) maximum-threshold (\S+) (\S+) "
    r"drop-probability (\S+)(?: weight (\S+))?( ecn)?"
)


def _nxos_tree(text: str) -> tuple[dict[str, Any], list[str]]:
    """NX-OS text as an instance of Cisco-NX-OS-device, values not validated, and unmatched queuing lines."""
    policies: dict[str, list[dict[str, Any]]] = {}
    bindings: list[dict[str, Any]] = []
    leftover: list[str] = []
    section, entry = "", dict[str, Any]()
    for _, raw in code_lines(text, "!"):
        line = raw.strip()
        if not raw.startswith(" "):
            section = line
            if line.startswith("policy-map type queuing "):
                policies[line.split()[-1]] = []
        elif section.startswith("interface ") and line.startswith("service-policy type queuing output "):
            name = section.removeprefix("interface ").replace("ethernet", "eth")
            bindings.append({"name": name, "pmap-items": {"name": line.split()[-1]}})
        elif section.startswith("policy-map type queuing "):
            if line.startswith("class type queuing "):
                entry = {"name": line.split()[-1]}
                policies[section.split()[-1]].append(entry)
            elif not _nxos_queue(entry, line):
                leftover.append(line)
    system = {
        "ipqos-items": {
            "queuing-items": {
                "p-items": {
                    "name-items": {
                        "PMapInst-list": [
                            {"name": name, "cmap-items": {"MatchCMap-list": classes}}
                            for name, classes in policies.items()
                        ]
                    }
                },
                "policy-items": {"out-items": {"intf-items": {"If-list": bindings}}},
            }
        }
    }
    return {"Cisco-NX-OS-device:System": system}, leftover


def _nxos_queue(entry: dict[str, Any], line: str) -> bool:
    if line.startswith("priority level "):
        entry["prio-items"] = {"level": number_or_text(line.split()[-1])}
    elif line.startswith("bandwidth remaining percent "):
        entry["setRemBW-items"] = {"val": number_or_text(line.split()[-1])}
    elif match := re.fullmatch(r"queue-limit (\S+) (\S+)", line):
        entry["QueueLimit-items"] = {"QueueLimitVal": match[1], "QueueLimitUnit": match[2]}
    elif match := _NXOS_DETECT.fullmatch(line):
        suffix = "NonEcn" if match[1] else ""
        items: dict[str, Any] = {
            f"minThreshold{suffix}": number_or_text(match[2]),
            f"minThresholdUnit{suffix}": match[3],
            f"maxThreshold{suffix}": number_or_text(match[4]),
            f"maxThresholdUnit{suffix}": match[5],
            f"dropAvail{suffix}": number_or_text(match[6]),
        }
        if not suffix:
            items |= {"weight": number_or_text(match[7] or "0"), "ecn": match[8] is not None}
        entry[f"RandDet{suffix}-items"] = items
    else:
        return False
    return True


class OnyxModules(Validator):
    """Mellanox's own modules must send exactly mlt's commands of the same kind."""

    name: ClassVar[str] = "mellanox.onyx"
    targets: ClassVar[tuple[str, ...]] = ("onyx",)

    def missing(self) -> str:
        if not (home() / "venv/bin/python").exists() or not (home() / "collections").is_dir():
            return f"Mellanox's modules are not here ({_INSTALL})"
        return ""

    def problems_of(self, generated: Generated, files: Mapping[str, str]) -> list[str]:
        wanted = []
        for queue in generated.plan.queues:
            detect = queue.random_detect
            thresholds = None if detect is None else [detect.min_bytes // 1024, detect.max_bytes // 1024]
            wanted.append({"tc": queue.number, "weight": queue.weight_percent, "thresholds": thresholds})
        request = json.dumps(
            {"collections": str(home() / "collections"), "ports": list(generated.plan.ports), "queues": wanted}
        )
        code, out, errors = _run([str(home() / "venv/bin/python"), str(_HERE / "onyx_oracle.py")], request)
        if code:
            return [f"the oracle failed: {errors.strip().splitlines()[-1] if errors.strip() else code}"]
        expected = set(json.loads(out))
        text = {line for body in files.values() for _, line in code_lines(body, generated.target.comment)}
        ours = {line for line in text if re.search(r" (congestion-control|dcb ets|qos trust) ?", line)}
        return [f"missing: {line}" for line in sorted(expected - ours)[:3]] + [
            f"not what the modules send: {line}" for line in sorted(ours - expected)[:3]
        ]


class HierConfig(Validator):
    """hier-config derives the rollback by itself; mlt's undo must remove everything that its remediation removes."""

    name: ClassVar[str] = "hier-config"
    targets: ClassVar[tuple[str, ...]] = ("eos", "nxos")
    platforms: ClassVar[Mapping[str, str]] = {"eos": "ARISTA_EOS", "nxos": "CISCO_NXOS"}

    def missing(self) -> str:
        return "" if (home() / "venv/bin/python").exists() else f"hier-config is not here ({_INSTALL} short)"

    def problems_of(self, generated: Generated, files: Mapping[str, str]) -> list[str]:
        comment = generated.target.comment
        running = [line for body in files.values() for _, line in code_lines(body, comment)]
        undo = [line for body in generated.undo.values() for _, line in code_lines(body, comment)]
        request = json.dumps({"platform": self.platforms[generated.target.name], "running": running, "undo": undo})
        code, out, errors = _run([str(home() / "venv/bin/python"), str(_HERE / "hier_rollback.py")], request)
        if code:
            return [f"hier-config failed: {errors.strip().splitlines()[-1] if errors.strip() else code}"]
        return [f"left behind after our undo: {line}" for line in json.loads(out)["left"][:5]]
