"""Seeded faults per target, and the check that catches each: our own reading, or a third-party validator.

A fault is one substitution in a correct text, of the kind people and generators make. Our check is: parse the text and
compare it with what the policy means. A fault that no check finds is a gap; run as a program, this prints the table:

    python tests/python/switch_configs/switch_faults.py examples/switch/paper-testbed.yaml [--target NAME]...
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mlt.switch_configs.behaviour import differences
from mlt.switch_configs.errors import CannotExpressError, MissingToolError, ParseError, SwitchConfigError
from mlt.switch_configs.generator import Generated, generate
from mlt.switch_configs.policy import Policy
from mlt.switch_configs.policy import load as load_policy
from mlt.switch_configs.registry import target as find_target
from mlt.switch_configs.registry import targets as all_targets
from mlt.switch_configs.validators import Validator, validators
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Fault:
    """``pattern`` becomes ``replacement`` at its first match (every match if ``everywhere``).

    ``limits``: the fault is one of written limits, which a policy may leave to the device's own buffers.
    """

    what: str
    pattern: str
    replacement: str
    everywhere: bool = False
    limits: bool = False


_CLI = "one DSCP matched by two classes"
FAULTS: Mapping[str, tuple[Fault, ...]] = {
    "onyx": (
        Fault("marks only (ecn for both)", r"congestion-control both", "congestion-control ecn"),
        Fault("drops only (red for both)", r"congestion-control both", "congestion-control red"),
        Fault("wrong mode name", r"congestion-control both", "congestion-control all"),
        Fault(
            "inverted thresholds",
            r"minimum-absolute (\d+) maximum-absolute \d+",
            r"minimum-absolute 9\1 maximum-absolute 1",
        ),
        Fault("threshold in bytes, not KB", r"minimum-absolute (\d+) maximum", r"minimum-absolute \g<1>000 maximum"),
        Fault(
            "RED on the control class",
            r"(traffic-class )7( dcb ets strict)",
            r"\g<1>7 congestion-control both minimum-absolute 40 maximum-absolute 40\n"
            r"interface ethernet 1/1 \g<1>7\2",
        ),
        Fault("trust missing", r"interface ethernet \S+ qos trust L3\n", ""),
        Fault("trust layer 2", r"qos trust L3", "qos trust L2"),
        Fault("DSCP mapped to an unbound priority", r"dscp 46 to switch-priority 6", "dscp 46 to switch-priority 9"),
        Fault("DSCP in the wrong queue", r"dscp 46 to switch-priority 6", "dscp 46 to switch-priority 5"),
        Fault("a data class not strict", r"(traffic-class 6 dcb ets) strict", r"\1 wrr 50"),
        Fault("limit missing", r"interface ethernet \S+ egress-buffer ePort\.tc6 [^\n]+\n", "", limits=True),
        Fault("limit in an undefined pool", r"map pool mlt reserved", "map pool ePool9 reserved", limits=True),
        Fault("misspelt command", r"congestion-control", "congestion-contol"),
    ),
    "sonic": (
        Fault("ecn off", r'"ecn": "ecn_all"', '"ecn": "ecn_none"'),
        Fault("wrong ecn mode", r'"ecn": "ecn_all"', '"ecn": "on"'),
        Fault("drop off for green", r'"wred_green_enable": "true"', '"wred_green_enable": "false"'),
        Fault("dangling wred profile", r'"wred_profile": "mlt_q6"', '"wred_profile": "mlt_q66"'),
        Fault("dangling scheduler", r'"scheduler": "mlt_strict"', '"scheduler": "strict"'),
        Fault("inverted thresholds", r'"green_min_threshold": "\d+"', '"green_min_threshold": "9999999"'),
        Fault(
            "threshold 0 means the whole buffer",
            r'"(green|yellow|red)_min_threshold": "221184"',
            r'"\1_min_threshold": "0"',
            True,
        ),
        Fault("colours differ", r'"yellow_max_threshold": "\d+"', '"yellow_max_threshold": "5000000"'),
        Fault(
            "probability 150", r'"(green|yellow|red)_drop_probability": "100"', r'"\1_drop_probability": "150"', True
        ),
        Fault("DSCP in the wrong traffic class", r'"46": "6"', '"46": "5"', True),
        Fault(
            "RED on the control class",
            r'("Ethernet0\|7": \{\s*"scheduler": "mlt_strict")',
            r'\1, "wred_profile": "mlt_q6"',
        ),
        Fault("not JSON", r'"SCHEDULER": \{', '"SCHEDULER": '),
        Fault("weighted where strict was asked", r'"type": "STRICT"', '"type": "DWRR", "weight": "10"'),
        Fault("limit in a missing pool", r'"pool": "mlt_egress_pool"', '"pool": "egress"', limits=True),
    ),
    "cumulus": (
        Fault("marks only (red disabled)", r"red enable", "red disable"),
        Fault("drops only (ecn disabled)", r"ecn enable", "ecn disable"),
        Fault("wrong enum", r"ecn enable", "ecn on"),
        Fault("unknown key", r"min-threshold (\d+)", r"min-threshold-bytes \1"),
        Fault("inverted thresholds", r"min-threshold \d+", "min-threshold 9999999"),
        Fault("probability 150", r"probability 100", "probability 150"),
        Fault("dangling profile", r"congestion-control profile mlt", "congestion-control profile nope"),
        Fault("trust layer 2", r"trust l3", "trust l2"),
        Fault("wrong scheduler mode", r"traffic-class 6 mode strict", "traffic-class 6 mode prio"),
        Fault("DSCP in the wrong priority", r"dscp 46 switch-priority 6", "dscp 46 switch-priority 5"),
        Fault("switch priority out of range", r"dscp 46 switch-priority 6", "dscp 46 switch-priority 9"),
        Fault(
            "RED on the control class",
            r"(nv set qos congestion-control mlt traffic-class )6( ecn)",
            r"\g<1>7 ecn enable\n\g<1>7 red enable\n"
            r"\g<1>7 min-threshold 221184\n\g<1>7 max-threshold 227328\n\g<1>7 probability 100\n\g<1>6\2",
        ),
    ),
    "eos": (
        Fault("wrong unit", r"minimum-threshold (\d+) bytes", r"minimum-threshold \1 octets"),
        Fault("probability 150", r"max-mark-probability 100", "max-mark-probability 150"),
        Fault("inverted thresholds", r"minimum-threshold \d+ bytes", "minimum-threshold 9999999 bytes"),
        Fault(
            "kbytes for bytes",
            r"minimum-threshold (\d+) bytes maximum-threshold (\d+) bytes",
            r"minimum-threshold \1 kbytes maximum-threshold \2 kbytes",
        ),
        Fault("dangling service profile", r"service-profile mlt", "service-profile nope"),
        Fault("trust missing", r" *qos trust dscp\n", ""),
        Fault("not strict", r"(uc-tx-queue 6\n +)priority strict", r"\1no priority\n      bandwidth percent 50"),
        Fault("ECN lets Not-ECT through", r"random-detect ecn count", "qos random-detect ecn allow non-ect"),
        Fault("drops ECT as well", r"random-detect ecn count", "random-detect drop minimum-threshold 1 bytes"),
        Fault("DSCP in the wrong queue", r"qos map dscp 46 to traffic-class 6", "qos map dscp 46 to traffic-class 5"),
        Fault("DSCP 64", r"qos map dscp 46 to", "qos map dscp 64 to"),
        Fault("misspelt command", r"uc-tx-queue 6", "uc-tx-que 6"),
        Fault("queue 9", r"uc-tx-queue 6", "uc-tx-queue 9"),
    ),
    "nxos": (
        Fault("probability 150", r"drop-probability 100", "drop-probability 150"),
        Fault("wrong unit", r"minimum-threshold (\d+) kbytes", r"minimum-threshold \1 kilobytes"),
        Fault("level 9", r"priority level 2", "priority level 9"),
        Fault("two classes at one level", r"priority level 2", "priority level 1"),
        Fault("misspelt command", r"random-detect minimum", "random-detct minimum"),
        Fault("inverted thresholds", r"minimum-threshold \d+ kbytes", "minimum-threshold 99999 kbytes"),
        Fault("marks only (non-ecn line missing)", r" +random-detect non-ecn [^\n]+\n", ""),
        Fault("drops only (ecn missing)", r"weight 0 ecn", "weight 0"),
        Fault("dangling policy", r"queuing output mlt-out", "queuing output nope"),
        Fault("dangling class", r"  class mlt-layers-1\n", "  class mlt-layers-9\n"),
        Fault("DSCP in the wrong class", r"match dscp 46", "match dscp 47"),
        Fault(_CLI, r"match dscp 46", "match dscp 46,40"),
        Fault("limit missing", r" +queue-limit [^\n]+\n", ""),
    ),
    "srlinux": (
        Fault("ECN off", r"enable-ecn true min", "enable-ecn false min"),
        Fault("inverted thresholds", r"min-threshold-percent \d+", "min-threshold-percent 99"),
        Fault("threshold above 100", r"max-threshold-percent \d+", "max-threshold-percent 101"),
        Fault("probability 150", r"max-drop-probability-percent 100", "max-drop-probability-percent 150"),
        Fault("dangling profile", r"queue-management-profile mlt-q6\n", "queue-management-profile nope\n"),
        Fault("dangling DSCP policy", r"classifiers dscp-policy mlt\n", "classifiers dscp-policy nope\n"),
        Fault(
            "dangling scheduler policy",
            r"output scheduler scheduler-policy mlt\n",
            "output scheduler scheduler-policy x\n",
        ),
        Fault("DSCP in the wrong queue", r"dscp 46 forwarding-class fc6", "dscp 46 forwarding-class fc5"),
        Fault("DSCP 64", r"dscp 46 forwarding-class", "dscp 64 forwarding-class"),
        Fault("not strict", r"set [^\n]+ scheduler 1 priority strict\n", ""),
        Fault("wrong priority name", r"scheduler 1 priority strict", "scheduler 1 priority high"),
        Fault("schedulers swapped", r"scheduler 1 input unicast-6", "scheduler 1 input unicast-1"),
        Fault("RED on the control queue", r"queues queue unicast-6", "queues queue unicast-7"),
        Fault("misspelt leaf", r"wred-slope", "wred-slop"),
    ),
    "junos": (
        Fault("ECN missing", r"set [^\n]+layers-1 explicit-congestion-notification\n", ""),
        Fault("dangling drop profile", r"drop-profile mlt-layers-1\n", "drop-profile nope\n"),
        Fault("queue 77", r"mlt-layers-1 queue-num 6", "mlt-layers-1 queue-num 77"),
        Fault("wrong priority name", r"mlt-control priority strict-high", "mlt-control priority xyz"),
        Fault("control not strict", r"mlt-control priority strict-high", "mlt-control priority low"),
        Fault("fill level above 100", r"fill-level \d+ fill-level \d+", "fill-level 1 fill-level 120"),
        Fault("inverted fill levels", r"fill-level (\d+) fill-level (\d+)", r"fill-level 9\2 fill-level 1"),
        Fault("dangling scheduler map", r"scheduler-map mlt\n", "scheduler-map nope\n"),
        Fault("dangling classifier", r"classifiers dscp mlt\n", "classifiers dscp nope\n"),
        Fault("DSCP 46 not classified", r" 101110| 101110 |\[ 101110 ", "[ "),
        Fault("code point of seven bits", r"\[ 101110 \]", "[ 1011100 ]"),
        Fault("misspelt statement", r"drop-profiles", "drop-profile"),
    ),
    "os10": (
        Fault("ECN missing", r" random-detect ecn\n", ""),
        Fault("dangling wred profile", r"  random-detect mlt-q6", "  random-detect mlt-q66"),
        Fault("dangling class", r" class mlt-c6\n", " class mlt-c66\n"),
        Fault("dangling trust map", r" trust-map dscp mlt\n", " trust-map dscp nope\n"),
        Fault("dangling policy", r"type queuing mlt-out\n(?=interface|$)", "type queuing nope\n"),
        Fault("probability 150", r"drop-probability 100", "drop-probability 150"),
        Fault("inverted thresholds", r"minimum-threshold \d+", "minimum-threshold 99999"),
        Fault("unknown colour", r"color green", "color blue"),
        Fault("colours differ", r"(color yellow minimum-threshold )\d+", r"\g<1>41"),
        Fault("not strict", r"(class mlt-c6\n)  priority\n", r"\1  bandwidth percent 50\n"),
        Fault("limit missing", r" +queue-limit [^\n]+\n", ""),
        Fault("DSCP mapped twice", r"qos-group 6 dscp 46", "qos-group 6 dscp 46,40"),
        Fault("misspelt command", r"random-detect color", "random-detct color"),
    ),
    "linux": (
        Fault("drops only (ecn missing)", r" ecn\n", "\n"),
        Fault("marks only (nodrop)", r" ecn\n", " ecn nodrop\n"),
        Fault("harddrop", r" ecn\n", " ecn harddrop\n"),
        Fault("max below min", r"min 221184 max \d+", "min 221184 max 100"),
        Fault("limit below max", r"red limit \d+", "red limit 2000"),
        Fault("ECN bits in the match", r"dsfield 0xb8 0xfc", "dsfield 0xb8 0xff"),
        Fault("DSCP not shifted", r"dsfield 0xb8 0xfc", "dsfield 0x2e 0xfc"),
        Fault("IPv6 forgotten", r"tc filter add dev \S+ parent 10: protocol ipv6 [^\n]+\n", ""),
        Fault("flow to a band that is not there", r"flowid 10:2", "flowid 10:9"),
        Fault("bands swapped", r"(dsfield 0xb8 0xfc flowid) 10:2", r"\1 10:3"),
        Fault("red missing in a band", r"tc qdisc add dev \S+ parent 10:2 handle 22: red [^\n]+\n", ""),
        Fault("priomap lets TOS decide", r"priomap 7 7", "priomap 1 2"),
        Fault("misspelt qdisc", r"handle 22: red", "handle 22: rde"),
    ),
    "openconfig": (
        Fault("marks only (drop false)", r'"drop": true', '"drop": false'),
        Fault("drops only (no ECN)", r'"enable-ecn": true', '"enable-ecn": false'),
        Fault("drop missing", r'"drop": true,\n\s*', ""),
        Fault("inverted thresholds", r'"min-threshold": "\d+"', '"min-threshold": "9999999"'),
        Fault("another threshold", r'"m(in|ax)-threshold": "221184"', r'"m\1-threshold": "221185"', True),
        Fault("probability over 100", r'"max-drop-probability-percent": 100', '"max-drop-probability-percent": 150'),
        Fault("DSCP 64", r'("dscp-set": \[\s*)46', r"\g<1>64"),
        Fault("IPv6 forgotten", r'"type": "IPV6"', '"type": "IPV4"'),
        Fault("dangling classifier", r'"name": "mlt-v6"', '"name": "mlt-v7"'),
        Fault("dangling profile", r'"queue-management-profile": "mlt-q6"', '"queue-management-profile": "mlt-q66"'),
        Fault("dangling group", r'"target-group": "mlt-control"', '"target-group": "control"'),
        Fault("control in the data's queue", r'"output-queue": "q7"', '"output-queue": "q6"'),
        Fault("priority not strict", r'"priority": "STRICT"', '"priority": "DWRR"'),
        Fault("strict order reversed", r'("sequence": )0', r"\g<1>9", True),
        Fault("dynamic limit", r"openconfig-qos:STATIC", "openconfig-qos:DYNAMIC_BASED_ON_SCALING_FACTOR"),
        Fault("misspelt leaf", r'"min-threshold"', '"minimum-threshold"'),
    ),
    "linux-ebpf": (
        Fault("threshold above limit", r"queue (\S+) 6 221184 \d+", r"queue \1 6 221184 20000"),
        Fault("threshold missing", r"queue (\S+) 6 221184", r"queue \1 6 0"),
        Fault("limit missing", r"queue (\S+) 6 221184 \d+", r"queue \1 6 221184 0"),
        Fault("threshold on control", r"queue (\S+) 7 0 0", r"queue \1 7 221184 0"),
        Fault("DSCP in the wrong queue", r"dscp 46 6", "dscp 46 5"),
        Fault("DSCP mapped twice", r"dscp 46 6", "dscp 46 6\ndscp 46 5"),
        Fault("DSCP 64", r"dscp 46 6", "dscp 64 6"),
        Fault("queue 8", r"queue (\S+) 7 ", r"queue \1 8 "),
        Fault("a queue left out", r"queue \S+ 3 [^\n]+\n", ""),
        Fault("commit missing", r"commit swp1\n", ""),
        Fault("threshold not a number", r"queue (\S+) 6 221184", r"queue \1 6 40k"),
        Fault("misspelt function", r"dscp 46 6", "dcsp 46 6"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One fault's fate. ``caught_by`` maps each check that ran to whether it objected."""

    target: str
    what: str
    caught_by: Mapping[str, bool]

    @property
    def ours(self) -> bool:
        return self.caught_by["mlt"]


def inject(files: Mapping[str, str], fault: Fault, *, comment: str) -> dict[str, str]:
    """The files with the fault in the first one it fits; raises SwitchConfigError if it fits none.

    Comments are taken out first, or a fault could land in one; Junos's names the queue's memory, is read and stays.
    """
    for name, whole in files.items():
        if name.endswith(".c") or name == "README.txt":
            continue
        kept = [
            line
            for line in whole.splitlines()
            if not line.lstrip().startswith(comment) or "percent of a queue's memory" in line
        ]
        text = "\n".join(kept) + "\n"
        changed, count = re.subn(fault.pattern, fault.replacement, text, count=0 if fault.everywhere else 1)
        if count and changed != text:
            return {**files, name: changed}
    raise SwitchConfigError(f"fault {fault.what!r} fits no line; the text changed and the fault table did not follow")


def caught_by_us(generated: Generated, files: Mapping[str, str]) -> bool:
    """Whether reading the text back and comparing it with the policy's meaning objects."""
    try:
        found = generated.target.parse(files)
    except ParseError:
        return True
    return bool(differences(generated.plan.intended(), found))


def examine(policy: Policy, target: str, *, outside: tuple[Validator, ...]) -> Iterator[Row]:
    """Every fault of one target before us and the given validators (those that know the target)."""
    # One port keeps the first match the only match that matters.
    generated = generate(policy, target, ports=("1",))
    limited = any(queue.limit_bytes is not None for queue in generated.plan.queues)
    for fault in FAULTS[generated.target.name]:
        if fault.limits and not limited:
            continue
        files = inject(generated.apply, fault, comment=generated.target.comment)
        verdicts = {"mlt": caught_by_us(generated, files)}
        for validator in outside:
            if generated.target.name in validator.targets:
                verdicts[validator.name] = bool(validator.problems_of(generated, files))
        yield Row(target=target, what=fault.what, caught_by=verdicts)


def table(policy: Policy, names: tuple[str, ...]) -> tuple[list[Row], list[str]]:
    """(rows, notes on validators or targets that could not take part)."""
    notes, outside = [], []
    for validator in validators():
        # The neutral form and the undo do not change with a fault in the text.
        if validator.name in ("ocbindings", "hier-config"):
            continue
        if reason := validator.missing():
            notes.append(f"{validator.name}: {reason}")
        else:
            outside.append(validator)
    rows: list[Row] = []
    for name in names:
        try:
            rows += examine(policy, name, outside=tuple(outside))
        except MissingToolError as error:
            notes.append(f"{name}: {error}")
        except CannotExpressError as error:
            notes.append(f"{name}: refuses the policy ({len(error.problems)} reasons; 'mlt switch check -t {name}')")
    return rows, notes


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if our own check misses a fault, 2 if the policy or a target cannot be read."""
    parser = argparse.ArgumentParser(description="Seed faults into correct configurations and print who catches each.")
    parser.add_argument("policy", type=Path)
    parser.add_argument("--target", "-t", action="append", help="Only these targets. Default: all.")
    chosen = parser.parse_args(arguments)
    try:
        names = tuple(find_target(name).name for name in chosen.target or ()) or tuple(all_targets())
        rows, notes = table(load_policy(chosen.policy), names)
    except SwitchConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    checkers = list(dict.fromkeys(checker for row in rows for checker in row.caught_by))
    shown = Table("target", "fault", *checkers)
    for row in rows:
        shown.add_row(
            row.target, row.what, *({True: "caught", False: "-", None: ""}[row.caught_by.get(j)] for j in checkers)
        )
    Console(width=None if sys.stdout.isatty() else 160).print(shown)
    for checker in checkers:
        seen = [row.caught_by[checker] for row in rows if checker in row.caught_by]
        print(f"{checker}: {sum(seen)} of {len(seen)}")
    for note in notes:
        print(f"skipped {note}")
    return 0 if all(row.ours for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
