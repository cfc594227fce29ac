"""``mlt doctor --switch``: whether a switch's counters match the policy."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from mlt._shared.counts import count_of
from mlt.diagnosis.doctor import Finding
from mlt.switch_configs.counter_check import check, named, uncounted, unseen
from mlt.switch_configs.counters import COUNTS
from mlt.switch_configs.errors import SwitchConfigError
from mlt.switch_configs.generator import generate
from mlt.switch_configs.policy import load
from mlt.switch_push.device import PushError
from mlt.switch_push.hosts import open_device

VARIABLE = "MLT_QOS_POLICY"


def examine_switch(
    host: str,
    target: str,
    policy: str | None,
    environ: Mapping[str, str],
    *,
    inventory: Path | None = None,
    known_hosts: Path | None = None,
) -> Iterator[Finding]:
    """One finding for each class whose counters contradict the policy, or one finding that all agree.

    Raises PushError: no policy is given, or the switch cannot be read. PolicyError: the policy is wrong; the switch is
    not contacted.
    """
    file = policy or environ.get(VARIABLE)
    if not file:
        raise PushError(f"--switch needs the policy of the switch: --policy FILE, or {VARIABLE}")
    wanted = load(file)
    device = open_device(host, target, inventory=inventory, known_hosts=known_hosts)
    try:
        generated = generate(wanted, device.target(target))
        plan = generated.plan
        rows = named(plan, device.counters(plan))
    except SwitchConfigError as error:
        raise PushError(str(error)) from None
    finally:
        device.close()
    found = check(plan, rows)
    fix = _again(file, target, host, inventory, known_hosts)
    for one in found:
        yield Finding("problem" if one.level == "wrong" else "optional", f"switch {host}: {one}", fix)
    missing = [*unseen(plan, rows), *uncounted(plan, rows, generated.target.counts)]
    for what in missing:
        yield Finding("optional", f"switch {host}: not seen: {what}", fix)
    if not found and not missing:
        sent = sum(row.sent or 0 for row in rows)
        never = uncounted(plan, rows, COUNTS - generated.target.counts)
        unchecked = f", as far as seen; {generated.target.name} does not count: {', '.join(never)}" if never else ""
        yield Finding(
            "ok",
            f"switch {host}: {count_of(len(rows), 'queue')} and {count_of(sent, 'packet')} match the policy{unchecked}",
        )


def _again(file: str, target: str, host: str, inventory: Path | None, known_hosts: Path | None) -> str:
    """Command that reads new counters; --for works with every device that can be read, by reading it twice."""
    words = ["mlt", "switch", "verify", file, "--target", target, "--switch", host, "--for", "10s"]
    for option, path in (("--inventory", inventory), ("--known-hosts", known_hosts)):
        words += [] if path is None else [option, str(path)]
    return shlex.join(words)
