"""Base of vendors whose configuration has one leaf per line: the vendor gives the leaves as templates.

Thresholds are in whole percent of the queue's memory. Reading joins the leaves and checks them against the rules of any
such system (references, ranges, the order of schedulers), so a wrong template shows as a difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

from mlt.switch_configs.behaviour import Behaviour, RandomDetect
from mlt.switch_configs.plan import Plan
from mlt.switch_configs.target import PortBuilder, Reading, Target, code_lines

BASIS = re.compile(r"percent of a queue's memory of (\d+) bytes")
_FIELD = re.compile(r"\{(\w+)\}")
Row = dict[str, str]


class LeafTarget(Target):
    """``leaves``: kind -> template. Kinds: dscp, strict, weight, minimum, maximum, probability (of a profile), and per
    port classifier, scheduler, profile. Fields: name, dscp, queue, order (0 is served first), value, profile, port."""

    leaves: ClassVar[Mapping[str, str]]
    write: ClassVar[str] = "set {leaf}"
    remove: ClassVar[str] = "delete {leaf}"

    def rows(self, plan: Plan) -> Iterator[tuple[str, Row]]:
        """(kind, fields) of every leaf of the policy."""
        name, memory = plan.name, plan.policy.switch.queue_memory_bytes or 0
        for dscp, queue in enumerate(plan.dscp_to_queue()):
            yield "dscp", {"name": name, "dscp": str(dscp), "queue": str(queue)}
        for order, planned in enumerate(plan.queues):
            at = {"name": name, "order": str(order), "queue": str(planned.number)}
            if planned.weight_percent is None:
                yield "strict", at
            yield "weight", at | {"value": str(planned.weight_percent or 1)}
            if (detect := planned.random_detect) is not None:
                profile = {"profile": f"{name}-q{planned.number}"}
                for kind, size in (("minimum", detect.min_bytes), ("maximum", detect.max_bytes)):
                    yield kind, profile | {"value": str(round(size * 100 / memory))}
                yield "probability", profile | {"value": str(detect.probability_percent)}
        for port in plan.ports:
            yield "classifier", {"port": port, "name": name}
            yield "scheduler", {"port": port, "name": name}
            for planned in plan.queues:
                if planned.random_detect is not None:
                    bound = {"port": port, "queue": str(planned.number), "profile": f"{name}-q{planned.number}"}
                    yield "profile", bound

    def render(self, plan: Plan) -> dict[str, str]:
        basis = f"{self.comment} percent of a queue's memory of {plan.policy.switch.queue_memory_bytes} bytes"
        lines = [self.write.format(leaf=self.leaves[kind].format(**row)) for kind, row in self.rows(plan)]
        return {f"{self.name}.apply.txt": "\n".join([basis, *lines]) + "\n"}

    def undo(self, plan: Plan) -> dict[str, str]:
        leaves = [self.leaves[kind].format(**row).rpartition(" ")[0] for kind, row in self.rows(plan)]
        return {f"{self.name}.undo.txt": "\n".join(self.remove.format(leaf=leaf) for leaf in leaves[::-1]) + "\n"}

    def parse(self, files: Mapping[str, str], reading: Reading | None = None) -> Behaviour:
        reading, memory = reading or Reading(), 0
        found: dict[str, list[Row]] = {kind: [] for kind in self.leaves}
        patterns = {kind: _pattern(self.write.format(leaf=leaf)) for kind, leaf in self.leaves.items()}
        for name, text in files.items():
            basis = BASIS.search(text)
            memory = int(basis[1]) if basis else reading.queue_memory_bytes or 0
            for number, line in code_lines(text, self.comment):
                rows = [(kind, match) for kind, each in patterns.items() if (match := each.fullmatch(line))]
                for kind, match in rows:
                    found[kind].append(match.groupdict())
                if not rows:
                    error = self.fail(f"{name}:{number}", f"not a leaf this target writes: {line!r}")
                    (reading.unknown if self.qos_sections.match(line) else reading.foreign)(error)
        if not memory:
            raise self.fail("files", "no buffer size is given for percentage thresholds")
        result = {}
        for row in found["classifier"]:
            if reading.wants(row["port"]):
                result[row["port"]] = self._port(found, row, memory)
        return {port: built.build() for port, built in result.items()}

    def _port(self, found: Mapping[str, list[Row]], bound: Row, memory: int) -> PortBuilder:
        built, where = PortBuilder(), f"port {bound['port']}"
        for row in (row for row in found["dscp"] if row["name"] == bound["name"]):
            dscp, queue = int(row["dscp"]), int(row["queue"])
            if dscp > 63 or queue > 7 or dscp in built.dscp:
                raise self.fail(where, f"dscp {dscp} to queue {queue} is out of range or mapped twice")
            built.dscp[dscp] = queue
        policy = next((row["name"] for row in found["scheduler"] if row["port"] == bound["port"]), None)
        shares = sorted((int(row["order"]), row) for row in found["weight"] if row["name"] == policy)
        strict = {row["order"] for row in found["strict"] if row["name"] == policy}
        order = [int(row["queue"]) for _, row in shares]
        if not built.dscp or not order or order != sorted(set(order), reverse=True):
            raise self.fail(where, f"a DSCP policy or schedulers from the highest queue down are missing; has {order}")
        built.present = set(order)
        built.weights = {int(row["queue"]): int(row["value"]) for _, row in shares if row["order"] not in strict}
        for row in (row for row in found["profile"] if row["port"] == bound["port"]):
            levels = [
                next((int(each["value"]) for each in found[kind] if each["profile"] == row["profile"]), -1)
                for kind in ("minimum", "maximum", "probability")
            ]
            if not 0 < levels[0] <= levels[1] <= 100 or not 0 < levels[2] <= 100:
                raise self.fail(where, f"profile {row['profile']} is missing or invalid: {levels}")
            built.random_detect[int(row["queue"])] = RandomDetect(
                min_bytes=round(levels[0] * memory / 100),
                max_bytes=round(levels[1] * memory / 100),
                probability_percent=levels[2],
                mark_ect=True,
                drop_not_ect=True,
            )
        return built


def _pattern(template: str) -> re.Pattern[str]:
    """A template as a regular expression: numbers are digits, names are words."""
    pieces, last = "", 0
    for match in _FIELD.finditer(template):
        kind = r"\d+" if match[1] in ("dscp", "queue", "order", "value") else r"\S+"
        pieces += re.escape(template[last : match.start()]) + f"(?P<{match[1]}>{kind})"
        last = match.end()
    return re.compile(pieces + re.escape(template[last:]))
