"""Linux on a Spectrum ASIC (mlxsw): prio at the root and red below it, which the driver offloads, and DSCP by dcb.

htb at the root stays in the kernel, which forwarded packets bypass. ``red``'s limit is not offloaded either, so L_i is
not written here. Source: Linux mlxsw, spectrum_qdisc.c and spectrum_dcb.c.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mlt.switch_configs.behaviour import RandomDetect
from mlt.switch_configs.errors import invalid_thresholds
from mlt.switch_configs.target import PortBuilder

if TYPE_CHECKING:
    from mlt.switch_configs.behaviour import Behaviour
    from mlt.switch_configs.plan import Plan
    from mlt.switch_configs.target import Target

PRIORITIES = 16
AVERAGE_PACKET_BYTES = 1500
_PRIO = re.compile(r"tc qdisc replace dev (\S+) root handle 10: prio bands (\d) priomap((?: \d)+)")
_RED = re.compile(
    r"tc qdisc replace dev (\S+) parent 10:(\d) handle \d+: red limit \d+ min (\d+) max (\d+) avpkt \d+ burst \d+ "
    r"probability ([\d.]+) bandwidth \d+bit( ecn)?( nodrop)?"
)
_APP = re.compile(r"dcb app replace dev (\S+) dscp-prio((?: \d+:[0-7])+)")


def _code_points(plan: Plan) -> str:
    table = plan.dscp_to_queue()
    return " ".join(f"{dscp}:{queue}" for dscp, queue in enumerate(table) if queue != plan.default_queue.number)


def lines(plan: Plan, port: str, *, max_bandwidth: int) -> list[str]:
    """The commands of one port; each replaces the existing setting, so the script may run again."""
    switch, total = plan.policy.switch, plan.policy.switch.queues
    bands = [max(0, total - 1 - priority) for priority in range(8)] + [total - 1] * (PRIORITIES - 8)
    written = [f"tc qdisc replace dev {port} root handle 10: prio bands {total} priomap {' '.join(map(str, bands))}"]
    for queue in plan.queues:
        if (detect := queue.random_detect) is not None:
            band = total - queue.number
            written.append(
                f"tc qdisc replace dev {port} parent 10:{band} handle {20 + band}: red "
                f"limit {switch.shared_buffer_bytes} min {detect.min_bytes} max {detect.max_bytes} "
                f"avpkt {AVERAGE_PACKET_BYTES} burst {detect.min_bytes // AVERAGE_PACKET_BYTES + 1} "
                f"probability {detect.probability_percent / 100} "
                f"bandwidth {min(switch.link_rate_bits_per_second, max_bandwidth)}bit ecn"
            )
    return [*written, f"dcb app replace dev {port} dscp-prio {_code_points(plan)}"]


def undo_lines(plan: Plan, port: str) -> list[str]:
    """DSCPs first, then the queues."""
    return [f"dcb app del dev {port} dscp-prio {_code_points(plan)}", f"tc qdisc del dev {port} root"]


class Reader:
    """Reads the commands back; priorities above the bands are unused."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.ports: dict[str, PortBuilder] = {}
        self.queue_of: dict[str, dict[int, int]] = {}
        self.bands: dict[str, int] = {}

    def line(self, where: str, line: str) -> None:
        if m := _PRIO.fullmatch(line):
            total, bands = int(m[2]), [int(band) for band in m[3].split()]
            if len(bands) != PRIORITIES or max(bands) >= total:
                raise self.target.fail(where, f"priomap {bands} names an unknown band")
            self.ports[m[1]] = PortBuilder()
            self.bands[m[1]] = total
            self.queue_of[m[1]] = {priority: total - 1 - band for priority, band in enumerate(bands)}
        elif (m := _RED.fullmatch(line)) and m[1] in self.ports:
            built, low, high = self.ports[m[1]], int(m[3]), int(m[4])
            queue, chance = self.bands[m[1]] - int(m[2]), round(float(m[5]) * 100)
            if not 0 < low <= high or not 0 < chance <= 100 or not 0 <= queue < self.bands[m[1]]:
                raise self.target.fail(where, f"band {m[2]}: {invalid_thresholds(low, high, chance)}")
            built.random_detect[queue] = RandomDetect(
                min_bytes=low,
                max_bytes=high,
                probability_percent=chance,
                mark_ect=m[6] is not None,
                drop_not_ect=m[7] is None,
            )
        elif (m := _APP.fullmatch(line)) and m[1] in self.ports:
            for pair in m[2].split():
                dscp, priority = map(int, pair.split(":"))
                if dscp > 63 or dscp in self.ports[m[1]].dscp:
                    raise self.target.fail(where, f"dscp {dscp} is out of range or mapped twice")
                self.ports[m[1]].dscp[dscp] = self.queue_of[m[1]][priority]
        else:
            raise self.target.fail(where, f"not a command this target writes: {line!r}")

    def behaviour(self) -> Behaviour:
        found = {}
        for port, built in self.ports.items():
            # A band without a DSCP is empty, whatever prio calls it.
            default = self.queue_of[port][0]
            built.present = {default, *built.dscp.values(), *built.random_detect}
            found[port] = built.build(default_queue=default)
        return found
