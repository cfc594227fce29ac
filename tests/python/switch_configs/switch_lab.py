"""Shared by the tests of ``mlt.switch_configs``: the example policy, and a policy small enough for live traffic."""

from __future__ import annotations

from pathlib import Path

from mlt.switch_configs.policy import Policy, load, parse

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "switch" / "paper-testbed.yaml"
LAYERS = ROOT / "examples" / "switch" / "vgg16.layers.json"
GOLDEN = ROOT / "tests" / "golden" / "switch"
PORTS = ("1", "2")


def example() -> Policy:
    return load(EXAMPLE)


def text(**edits: str) -> str:
    """A sound policy of two classes as YAML; each edit replaces a marked value."""
    values = {
        "s1": "32768", "l1": "131072", "s2": "65536", "l2": "262144", "dscp1": "46", "dscp2": "10", "ecn": "true",
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
        "{extra}\n"
    ).format(**values)


def small(**edits: str) -> Policy:
    return parse(text(**edits))
