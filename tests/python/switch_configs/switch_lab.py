"""Shared by the tests of ``mlt.switch_configs``: the example policy, and a policy small enough for live traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from mlt.switch_configs.policy import DefaultClass, Policy, load, parse

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "switch" / "paper-testbed.yaml"
QFX = EXAMPLE.with_name("qfx5120.yaml")
LAYERS = ROOT / "examples" / "switch" / "vgg16.layers.json"
FACTORY = Path(__file__).with_name("factory")
GOLDEN = ROOT / "tests" / "golden" / "switch"
PORTS = ("1", "2")


def example() -> Policy:
    return load(EXAMPLE)


def example_for(target: str, *, buffers: Literal["keep", "write"] = "keep") -> Policy:
    """The example, or what a QFX can serve of it where the target is Junos."""
    policy = load(QFX if target.startswith(("junos", "srlinux")) else EXAMPLE)
    if target.startswith("srlinux"):
        accept = {"srlinux": {"step-threshold": "ramp", "queue-limit": "the buffer profile is the limit"}}
        policy = policy.model_copy(update={"default": DefaultClass(), "targets": (), "accept": accept})
    return policy.model_copy(update={"switch": policy.switch.model_copy(update={"buffers": buffers})})


def text(**edits: str) -> str:
    """A sound policy of two classes as YAML; each edit replaces a marked value."""
    values = {
        "s1": "36864", "l1": "131072", "s2": "73728", "l2": "262144", "dscp1": "46", "dscp2": "10", "ecn": "true",
        "drop": "true", "buffer": "4194304", "queues": "8", "control": "{dscp: 48}", "sharing": "lowest",
        "rate": "20000000", "extra": "", "probability": "100", "ports": "[2]",
    } | edits  # fmt: skip
    return (
        "switch: {{queues: {queues}, shared_buffer_bytes: {buffer},"
        " link_rate_bits_per_second: {rate}, ports: {ports}}}\n"
        "control: {control}\n"
        "data:\n"
        "  - name: front\n"
        "    dscp: {dscp1}\n"
        "    wred: {{min_threshold_bytes: {s1}, enable_ecn: {ecn}, drop: {drop},"
        " max_drop_probability_percent: {probability}}}\n"
        "    limit_bytes: {l1}\n"
        "  - {{name: back, dscp: {dscp2}, wred: {{min_threshold_bytes: {s2}}}, limit_bytes: {l2}}}\n"
        "default: {{sharing: {sharing}}}\n"
        "targets: [sonic/202511@mlnx-sn2100, onyx@sn2100, cumulus@sn2100, eos@7060x]\n"
        "{extra}\n"
    ).format(**values)


def small(**edits: str) -> Policy:
    return parse(text(**edits))
