"""SONiC: CONFIG_DB tables, and the patch or load that adds and removes them on one switch (``change``, ``updater``).

Syntax: SONiC's CONFIG_DB documents, qosorch.cpp and saiwred.h. ``ecn`` alone never drops: ``wred_<colour>_enable`` is
the separate SAI attribute for drops, so every profile sets both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from mlt.switch_configs.behaviour import Behaviour, RandomDetect
from mlt.switch_configs.capabilities import Capabilities, Feature, Support
from mlt.switch_configs.counters import QueueCounters, integer, merge
from mlt.switch_configs.errors import listed, not_json
from mlt.switch_configs.plan import Plan
from mlt.switch_configs.platforms import platforms
from mlt.switch_configs.target import Procedure, Reading, Target, Unconfirmed
from mlt.switch_configs.vendors.sonic.change import change, text
from mlt.switch_configs.vendors.sonic.reading import Reader
from mlt.switch_configs.vendors.sonic.updater import Database, parts_of, pointer, refusals, releases, rules_of

from mlt._shared.counts import count_of
from mlt._shared.structured_text import SyntaxProblem, parse_json

COLOURS = ("green", "yellow", "red")
RESERVED_BYTES = 1024
# The order matters to apply-patch: entries come before the entries that refer to them.
ORDER = (
    "DSCP_TO_TC_MAP",
    "TC_TO_QUEUE_MAP",
    "TC_TO_PRIORITY_GROUP_MAP",
    "SCHEDULER",
    "WRED_PROFILE",
    "BUFFER_POOL",
    "BUFFER_PROFILE",
    "BUFFER_QUEUE",
    "QUEUE",
    "PORT_QOS_MAP",
)
BY_SCRIPT = (
    "sudo sh ./apply.sh   (deletes what must go, then config load -y config_db.json; made for this switch's state)",
    "sudo config save -y  (when verified)",
)
UNDO_BY_SCRIPT = ("sudo sh ./undo.sh    (back to the state that --running gave; tried on a model of it)",)
BY_LOAD = (
    "sudo config load -y config_db.json (merges; the updater of this release refuses these tables in a patch)",
    "better: mlt switch generate ... --running /etc/sonic/config_db.json, which writes the undo as well",
)
NO_UNDO = (
    "mlt switch rollback ... --running with the config_db.json from before; save a copy of it first",
    "neither config rollback (the updater refuses it too) nor config qos clear (it removes every QoS table)",
)


class Sonic(Target):
    """Tables of strings; bytes; queue index decides strict priority (SCHEDULER's ``priority`` is never read)."""

    name: ClassVar[str] = "sonic"
    title: ClassVar[str] = "SONiC (CONFIG_DB)"
    comment: ClassVar[str] = "#"
    whole: ClassVar[str] = (
        "the whole CONFIG_DB: /etc/sonic/config_db.json, or what 'sonic-cfggen -d --print-data' prints"
    )
    whole_json: ClassVar[str] = "config_db.json"
    capabilities: ClassVar[Capabilities] = Capabilities(
        buffers_apart=True,
        above_max_ect="mark",
        above_max_source="SAI keeps marking above max on Spectrum; other ASICs differ (sonic-buildimage issue 27606)",
        support={
            Feature.SELECTIVE_DROP: Support(
                "unconfirmed",
                "ecn_all with wred enabled: two SAI attributes; whether Not-ECT drops depends on the ASIC",
            ),
            Feature.STRICT_PRIORITY: Support("yes", "SCHEDULER type STRICT, highest queue index first"),
            Feature.ECN_ON_STRICT: Support("yes", "WRED and scheduler are separate attributes of a queue"),
            Feature.WEIGHTED: Support("yes", "SCHEDULER type DWRR"),
            Feature.QUEUE_LIMIT: Support("unconfirmed", "BUFFER_PROFILE static_th needs a pool of mode static"),
            Feature.STEP_THRESHOLD: Support("yes", "minimum equal to maximum is used in SONiC's own tests"),
            Feature.FAIR: Support("no", "one scheduler level per port in CONFIG_DB", "set default.sharing: weighted"),
        },
    )
    procedure: ClassVar[Procedure] = Procedure(
        apply=(
            "sudo config apply-patch patch.json      (expects tables as a factory leaves them;",
            "  for one switch's own state: mlt switch generate ... --running /etc/sonic/config_db.json)",
            "sudo config save -y                     (when verified)",
        ),
        verify=(
            "show ecn",
            "sudo counterpoll wredqueue enable",
            "show queue wredcounters PORT",
            "show queue counters PORT",
            "sonic-clear queue wredcounters          (before a measurement)",
        ),
        undo=(
            "sudo config apply-patch undo-patch.json (the inverse of patch.json; --running: back to that very state)",
            "never 'config qos clear': it removes every QoS and buffer table of the switch",
        ),
        notes=(
            "wredcounters exist only where STATE_DB says that the platform supports them",
            "drop of Not-ECT depends on the ASIC: read WredDrp under load before trusting it",
        ),
    )
    unconfirmed: ClassVar[tuple[Unconfirmed, ...]] = (
        Unconfirmed(
            r"static_th", "a static egress pool: real SN2100 defaults are dynamic; sizes here are the policy's"
        ),
        Unconfirmed(r"ecn_all", "that this ASIC drops Not-ECT while it marks ECT (differs between ASICs)"),
    )

    def native_port(self, label: str) -> str:
        if not label.isdigit():
            return label
        lane = self.platform.first_lane(int(label))
        if lane is None:
            raise ValueError(
                f"port {label}: SONiC numbers ports by their lanes, which depend on the platform. Way out: --target "
                f"sonic@PLATFORM ({', '.join(platforms(self.name))}), or name the ports (Ethernet0, ...)"
            )
        return f"Ethernet{lane}"

    def port_problem(self, port: str) -> str | None:
        out = "Way out: --running config_db.json, whose PORT table says what this switch calls its ports"
        number = re.fullmatch(r"Ethernet(\d+)", port)
        if number is None:
            return (
                f"port {port}: SONiC's ports are called Ethernet0, Ethernet4, ... by their first lanes (aliases like "
                f"etp1 are not keys of CONFIG_DB). {out}; or their numbers with a platform"
            )
        count = self.platform.port_count
        if count is None:
            return None
        firsts = [f"Ethernet{self.platform.first_lane(each)}" for each in range(1, count + 1)]
        if port in firsts:
            return None
        return (
            f"port {port}: ports of {self.platform.title} begin at {listed(firsts)}; another lane is a port only where "
            f"one is broken out. {out}"
        )

    def tables(self, plan: Plan) -> Database:
        """The CONFIG_DB content: table -> key -> field -> value."""
        name = plan.name
        identity = {str(queue.number): str(queue.number) for queue in reversed(plan.queues)}
        tables: Database = {
            "DSCP_TO_TC_MAP": {name: {str(dscp): str(queue) for dscp, queue in enumerate(plan.dscp_to_queue())}},
            "TC_TO_QUEUE_MAP": {name: identity},
            "TC_TO_PRIORITY_GROUP_MAP": {name: dict.fromkeys(identity, "0")},
            "SCHEDULER": {},
            "WRED_PROFILE": {},
            "QUEUE": {},
            "PORT_QOS_MAP": {
                port: {"dscp_to_tc_map": name, "tc_to_queue_map": name, "tc_to_pg_map": name} for port in plan.ports
            },
        }
        limited = [queue for queue in plan.queues if queue.limit_bytes is not None]
        if limited:
            pool = f"{name}_egress_pool"
            size = str(plan.policy.switch.shared_buffer_bytes)
            tables["BUFFER_POOL"] = {pool: {"type": "egress", "mode": "static", "size": size}}
            tables["BUFFER_PROFILE"] = {}
            tables["BUFFER_QUEUE"] = {}
        for queue in plan.queues:
            scheduler = f"{name}_strict" if queue.weight_percent is None else f"{name}_q{queue.number}"
            tables["SCHEDULER"][scheduler] = (
                {"type": "STRICT"}
                if queue.weight_percent is None
                else {"type": "DWRR", "weight": str(queue.weight_percent)}
            )
            entry = {"scheduler": scheduler}
            detect = queue.random_detect
            if detect is not None:
                profile = f"{name}_q{queue.number}"
                entry["wred_profile"] = profile
                tables["WRED_PROFILE"][profile] = self._profile(detect)
            for port in plan.ports:
                tables["QUEUE"][f"{port}|{queue.number}"] = dict(entry)
                if queue.limit_bytes is not None:
                    profile = f"{name}_egress_q{queue.number}"
                    tables["BUFFER_PROFILE"][profile] = {
                        "pool": f"{name}_egress_pool",
                        "size": str(RESERVED_BYTES),
                        "static_th": str(queue.limit_bytes - RESERVED_BYTES),
                    }
                    tables["BUFFER_QUEUE"][f"{port}|{queue.number}"] = {"profile": profile}
        return tables

    @staticmethod
    def _profile(detect: RandomDetect) -> dict[str, str]:
        profile = {"ecn": "ecn_all" if detect.mark_ect else "ecn_none"}
        for colour in COLOURS:
            profile[f"wred_{colour}_enable"] = "true" if detect.drop_not_ect else "false"
            profile[f"{colour}_min_threshold"] = str(detect.min_bytes)
            profile[f"{colour}_max_threshold"] = str(detect.max_bytes)
            profile[f"{colour}_drop_probability"] = str(detect.probability_percent)
        return profile

    def render(self, plan: Plan) -> dict[str, str]:
        tables = self.tables(plan)
        files = {"config_db.json": text(tables)}
        # Without the running configuration, assume foreign entries in every table, as in a factory configuration.
        before: Database = {table: {"other": {}} for table in tables}
        after = {table: {"other": {}, **entries} for table, entries in tables.items()}
        if not self._refusals(before, after) and not self._refusals(after, before):
            patch = [
                {"op": "add", "path": pointer(table, key), "value": value}
                for table in ORDER
                for key, value in tables.get(table, {}).items()
            ]
            files["patch.json"] = text(patch)
        return files

    def undo(self, plan: Plan) -> dict[str, str]:
        """Empty if the updater rejects the reverse patch: then only ``against`` a running configuration has an undo."""
        patch = self.render(plan).get("patch.json")
        if patch is None:
            return {}
        return {"undo-patch.json": text([{"op": "remove", "path": step["path"]} for step in json.loads(patch)[::-1]])}

    def _refusals(self, before: Database, after: Database) -> list[str]:
        return refusals(before, after, release=self.spec.release, platform=self.platform)

    def against(self, plan: Plan, running: str) -> tuple[dict[str, str], dict[str, str], tuple[str, ...]]:
        """Input for one switch's own tools, made for its CONFIG_DB and tried on a model of it: a patch and its inverse
        if this release's updater allows both, else files for ``config load`` and the keys to delete first."""
        before = self._database(running)
        tables = self.tables(plan)
        if "PORT" in before and (absent := [port for port in plan.ports if port not in before["PORT"]]):
            raise self.fail("running configuration", f"has no port {listed(absent)}; its ports are the PORT table's")
        made = change(before, tables, plan.ports)
        full = text(tables)
        refused = self._refusals(made.before, made.after) + self._refusals(made.after, made.before)
        if not refused:
            there, back = made.patch()
            return {"config_db.json": full, "patch.json": text(there)}, {"undo-patch.json": text(back)}, made.notes
        load, back_load = made.loads()
        rules, _ = rules_of(self.spec.release)
        notes = (*made.notes, f"config apply-patch would refuse this ({rules}): {refused[0]}")
        kept = load.besides(tables)
        names = ("kept_db.json", "config_db.json") if kept else ("config_db.json",)
        apply = {"config_db.json": full, "apply.sh": load.script(*names)} | (
            {"kept_db.json": text(kept)} if kept else {}
        )
        undo = {"undo.sh": back_load.script(*(("undo_db.json",) if back_load.entries else ()))}
        if back_load.entries:
            undo["undo_db.json"] = text(back_load.entries)
        return apply, undo, notes

    def of_release(self) -> str:
        known, release = releases(), self.spec.release
        what = f"'config apply-patch' of {release or 'no release'}: "
        if release not in known:
            what += f"taken for {known[0]}, whose rules allow least; "
        return f"{what}rules are known of {', '.join(known)}"

    def _database(self, running: str) -> Database:
        try:
            before = parse_json(running)
        except SyntaxProblem as error:
            cause = f"{not_json(running, error)}; it takes {self.whole}"
            raise self.fail("running configuration", cause) from error
        if not isinstance(before, dict) or not all(isinstance(table, dict) for table in before.values()):
            raise self.fail("running configuration", "not a CONFIG_DB: expected tables of keys")
        return before

    def parse(self, files: Mapping[str, str], reading: Reading | None = None) -> Behaviour:
        if "config_db.json" not in files:
            raise self.fail("files", "config_db.json is missing")
        try:
            tables = parse_json(files["config_db.json"])
        except SyntaxProblem as error:
            raise self.fail(f"config_db.json:{error.line or 1}", f"not JSON: {error.reason}") from error
        behaviour = Reader(self, tables, reading or Reading()).behaviour()
        if "patch.json" in files:
            self._patch_agrees(tables, json.loads(files["patch.json"]))
        return behaviour

    def _patch_agrees(self, tables: Database, patch: list[dict[str, Any]]) -> None:
        """The patch must set exactly the tables' content; entries kept for other owners are not in the tables."""
        count = 0
        for step in patch:
            wanted: Any = tables
            for part in parts_of(step["path"]):
                wanted = wanted.get(part) if isinstance(wanted, dict) else None
            count += wanted is not None
            if step["op"] != "remove" and wanted is not None and step.get("value") != wanted:
                if isinstance(wanted, dict) and wanted.items() <= step["value"].items():
                    continue
                raise self.fail("patch.json", f"{step['path']} is not what config_db.json has")
        keys = sum(len(entries) for entries in tables.values())
        if patch and all(step["op"] == "add" and len(parts_of(step["path"])) == 2 for step in patch) and count < keys:
            raise self.fail("patch.json", f"adds {count_of(count, 'key')}, config_db.json has {keys}")

    def steps(self, files: Mapping[str, str]) -> Procedure:
        """By patch, by script, or by merging only; without an undo if the previous content is unknown."""
        if "patch.json" in files or "undo-patch.json" in files:
            return self.procedure
        if "apply.sh" in files or "undo.sh" in files:
            return replace(self.procedure, apply=BY_SCRIPT, undo=UNDO_BY_SCRIPT)
        return replace(self.procedure, apply=BY_LOAD, undo=NO_UNDO)

    def parse_counters(self, text: str) -> list[QueueCounters]:
        rows: list[QueueCounters] = []
        columns: list[str] = []
        for line in text.splitlines():
            cells = line.split()
            if len(cells) > 2 and cells[0] == "Port" and cells[1] == "TxQ":
                columns = cells
            elif len(cells) == len(columns) and cells and cells[1][:2] in ("UC", "MC") and cells[1][:2] == "UC":
                values = dict(zip(columns, cells, strict=True))
                number = int("".join(character for character in cells[1] if character.isdigit()))
                fields = {"sent": "Counter/pkts", "marked": "EcnMarked/pkts", "dropped_early": "WredDrp/pkts",
                          "dropped_at_limit": "Drop/pkts"}  # fmt: skip
                rows.append(
                    QueueCounters(
                        port=cells[0],
                        queue=number,
                        **{name: integer(values[column]) for name, column in fields.items() if column in values},
                    )
                )
        return merge(rows)


TARGET = Sonic()
