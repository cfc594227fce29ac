"""SONiC: CONFIG_DB tables and the JSON patch that adds and removes them.

Syntax: SONiC's CONFIG_DB documents, qosorch.cpp and saiwred.h. ``ecn`` alone never drops: ``wred_<colour>_enable`` is
the separate SAI attribute that does, so every profile sets both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from mlt.switch_configs.behaviour import Behaviour, RandomDetect
from mlt.switch_configs.capabilities import Capabilities, Feature, Support
from mlt.switch_configs.counters import QueueCounters, integer, merge
from mlt.switch_configs.plan import Plan
from mlt.switch_configs.platforms import platforms
from mlt.switch_configs.target import PortBuilder, Procedure, Target, Unconfirmed

COLOURS = ("green", "yellow", "red")
RESERVED_BYTES = 1024
# Order matters to apply-patch: what is referred to comes before what refers to it.
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
Table = dict[str, dict[str, str]]


class Sonic(Target):
    """Tables of strings; bytes; queue index decides strict priority (SCHEDULER's ``priority`` is never read)."""

    name: ClassVar[str] = "sonic"
    title: ClassVar[str] = "SONiC (CONFIG_DB)"
    comment: ClassVar[str] = "#"
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
            "sudo config checkpoint mlt-before",
            "sudo config apply-patch patch.json      (where the tables exist without these keys;",
            "  for one switch's own state: mlt switch generate ... --running /etc/sonic/config_db.json)",
            "or: sudo config load -y config_db.json  (merges the same content)",
        ),
        verify=(
            "show ecn",
            "sudo counterpoll wredqueue enable",
            "show queue wredcounters PORT",
            "show queue counters PORT",
            "sonic-clear queue wredcounters          (before a measurement)",
        ),
        undo=(
            "sudo config apply-patch undo-patch.json (removes exactly the keys that patch.json added)",
            "or, for whatever was configured before: sudo config rollback mlt-before",
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

    def tables(self, plan: Plan) -> dict[str, Table]:
        """The CONFIG_DB content: table -> key -> field -> value."""
        name = plan.name
        identity = {str(queue.number): str(queue.number) for queue in reversed(plan.queues)}
        tables: dict[str, Table] = {
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
        patch = [
            {"op": "add", "path": f"/{table}/{_pointer(key)}", "value": value}
            for table in ORDER
            for key, value in tables.get(table, {}).items()
        ]
        return {"config_db.json": _json(tables), "patch.json": _json(patch)}

    def undo(self, plan: Plan) -> dict[str, str]:
        patch = json.loads(self.render(plan)["patch.json"])
        return {"undo-patch.json": _json([{"op": "remove", "path": step["path"]} for step in reversed(patch)])}

    def against(self, plan: Plan, running: str) -> tuple[dict[str, str], dict[str, str]]:
        """Patch and inverse for one CONFIG_DB: a missing table is added whole, an existing key replaced, and the
        undo puts back what stood there."""
        try:
            before = json.loads(running)
        except json.JSONDecodeError as error:
            raise self.fail(f"running configuration:{error.lineno}", f"not JSON: {error.msg}") from error
        if not isinstance(before, dict) or not all(isinstance(table, dict) for table in before.values()):
            raise self.fail("running configuration", "not a CONFIG_DB: expected tables of keys")
        patch: list[dict[str, Any]] = []
        undo: list[dict[str, Any]] = []
        tables = self.tables(plan)
        for table in ORDER:
            keys = tables.get(table, {})
            if keys and table not in before:
                patch.append({"op": "add", "path": f"/{table}", "value": keys})
                undo.append({"op": "remove", "path": f"/{table}"})
                continue
            for key, value in keys.items():
                path = f"/{table}/{_pointer(key)}"
                known = before[table].get(key)
                if known == value:
                    continue
                patch.append({"op": "add" if known is None else "replace", "path": path, "value": value})
                undo.append(
                    {"op": "remove", "path": path} if known is None else {"op": "replace", "path": path, "value": known}
                )
        apply = {"config_db.json": _json(tables), "patch.json": _json(patch)}
        return apply, {"undo-patch.json": _json(undo[::-1])}

    def parse(self, files: Mapping[str, str]) -> Behaviour:
        if "config_db.json" not in files:
            raise self.fail("files", "config_db.json is missing")
        try:
            tables = json.loads(files["config_db.json"])
        except json.JSONDecodeError as error:
            raise self.fail(f"config_db.json:{error.lineno}", f"not JSON: {error.msg}") from error
        result = {}
        for port, binding in tables.get("PORT_QOS_MAP", {}).items():
            built = PortBuilder()
            dscp_to_tc = self._get(tables, "DSCP_TO_TC_MAP", binding.get("dscp_to_tc_map"), f"PORT_QOS_MAP|{port}")
            tc_to_queue = self._get(tables, "TC_TO_QUEUE_MAP", binding.get("tc_to_queue_map"), f"PORT_QOS_MAP|{port}")
            for dscp, tc in dscp_to_tc.items():
                if tc not in tc_to_queue or not dscp.isdigit() or not 0 <= int(dscp) < 64:
                    raise self.fail(f"DSCP_TO_TC_MAP {dscp}", f"traffic class {tc} leads to no queue")
                built.dscp[int(dscp)] = int(tc_to_queue[tc])
            for key, entry in tables.get("QUEUE", {}).items():
                owner, _, number = key.partition("|")
                if owner == port:
                    self._queue(tables, built, int(number), entry)
            for key, entry in tables.get("BUFFER_QUEUE", {}).items():
                owner, _, number = key.partition("|")
                if owner == port:
                    profile = self._get(tables, "BUFFER_PROFILE", entry.get("profile"), f"BUFFER_QUEUE|{key}")
                    self._get(tables, "BUFFER_POOL", profile.get("pool"), f"BUFFER_PROFILE of {key}")
                    built.limits[int(number)] = int(profile["static_th"]) + int(profile["size"])
            result[port] = built.build()
        if "patch.json" in files:
            self._patch_agrees(tables, json.loads(files["patch.json"]))
        return result

    def _get(self, tables: dict[str, Table], table: str, key: str | None, where: str) -> dict[str, str]:
        if key is None or key not in tables.get(table, {}):
            raise self.fail(where, f"refers to {table} {key!r}, which is not defined")
        return tables[table][key]

    def _queue(self, tables: dict[str, Table], built: PortBuilder, number: int, entry: dict[str, str]) -> None:
        built.present.add(number)
        scheduler = self._get(tables, "SCHEDULER", entry.get("scheduler"), f"QUEUE {number}")
        if scheduler.get("type") not in ("STRICT", "DWRR"):
            raise self.fail(f"SCHEDULER {entry['scheduler']}", f"type {scheduler.get('type')!r} is not STRICT or DWRR")
        if scheduler["type"] == "DWRR":
            built.weights[number] = int(scheduler["weight"])
        if "wred_profile" not in entry:
            return
        profile = self._get(tables, "WRED_PROFILE", entry["wred_profile"], f"QUEUE {number}")
        where = f"WRED_PROFILE {entry['wred_profile']}"
        if profile.get("ecn") not in ("ecn_none", "ecn_all", "ecn_green", "ecn_yellow", "ecn_red"):
            raise self.fail(where, f"ecn {profile.get('ecn')!r} is not an ECN mode")
        try:
            lows, highs, chances = (
                {int(profile[f"{colour}_{name}"]) for colour in COLOURS}
                for name in ("min_threshold", "max_threshold", "drop_probability")
            )
        except (KeyError, ValueError) as error:
            raise self.fail(where, f"missing or malformed field: {error}") from error
        if len(lows) > 1 or len(highs) > 1 or len(chances) > 1:
            raise self.fail(where, "colours differ; every packet of ours may have any colour")
        low, high, chance = lows.pop(), highs.pop(), chances.pop()
        if low > high or low == 0 or chance > 100:
            raise self.fail(where, f"thresholds {low}..{high} at {chance}% make no sense (0 means the whole buffer)")
        built.random_detect[number] = RandomDetect(
            min_bytes=low,
            max_bytes=high,
            probability_percent=chance,
            mark_ect=profile["ecn"] == "ecn_all",
            drop_not_ect=all(profile.get(f"wred_{colour}_enable") == "true" for colour in COLOURS),
        )

    def _patch_agrees(self, tables: dict[str, Table], patch: list[dict[str, Any]]) -> None:
        """Every key the patch sets must be the table's; a patch for a running configuration may leave keys out."""
        for step in patch:
            table, _, key = step["path"].lstrip("/").partition("/")
            name = key.replace("~1", "/").replace("~0", "~")
            wanted = tables.get(table) if not key else tables.get(table, {}).get(name)
            if step.get("value") != wanted:
                raise self.fail("patch.json", f"{step['path']} is not what config_db.json has")
        if patch and all(step["op"] == "add" and step["path"].count("/") > 1 for step in patch):
            count = sum(len(keys) for keys in tables.values())
            if len(patch) != count:
                raise self.fail("patch.json", f"adds {len(patch)} keys, config_db.json has {count}")

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


def _pointer(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _json(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


TARGET = Sonic()
