"""Reads CONFIG_DB back: mlt's own, where everything must be known and consistent, or a switch's whole database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlt.switch_configs.behaviour import Behaviour, PortBehaviour, RandomDetect
from mlt.switch_configs.errors import invalid_thresholds
from mlt.switch_configs.target import PortBuilder, Reading
from mlt.switch_configs.vendors.sonic.change import CLEAR_PFC
from mlt.switch_configs.vendors.sonic.model import model, problems, split_queue_key
from mlt.switch_configs.vendors.sonic.updater import Database

if TYPE_CHECKING:
    from mlt.switch_configs.target import Target

COLOURS = ("green", "yellow", "red")
BINDINGS = ("dscp_to_tc_map", "tc_to_queue_map")


class Reader:
    """Joins the tables port by port; a range in a key applies to each of its queues, ``global`` to every port."""

    def __init__(self, target: Target, tables: Database, reading: Reading) -> None:
        self.target, self.tables, self.reading = target, tables, reading

    def behaviour(self) -> Behaviour:
        for where, what in problems(self.tables):
            if self._concerns(where):
                self._unknown(where, what)
        self.reading.skipped += sum(table not in model() for table in self.tables)
        bindings = self.tables.get("PORT_QOS_MAP", {})
        common = bindings.get("global", {})
        if common:
            self.reading.kept.append("PORT_QOS_MAP|global: serves every port without an entry of its own")
        ports = [port for port in {**self.tables.get("PORT", {}), **bindings} if port != "global"]
        return {port: self._port(port, {**common, **bindings.get(port, {})}) for port in ports if self._wants(port)}

    def _wants(self, port: str) -> bool:
        return self.reading.wants(port)

    def _concerns(self, where: str) -> bool:
        """False for an entry of a port outside the policy."""
        table, _, key = where.partition("|")
        split = split_queue_key(key)
        ports = split[0] if split is not None else (key,) if table == "PORT_QOS_MAP" and key != "global" else ()
        return not ports or any(self._wants(port) for port in ports)

    def _unknown(self, where: str, what: str) -> None:
        self.reading.unknown(self.target.fail(where, what))

    def _get(self, table: str, key: str | None, where: str) -> dict[str, str]:
        if key is None:
            self._unknown(where, f"names no {table}")
            return {}
        # ``problems`` reports dangling names.
        return self.tables.get(table, {}).get(key, {})

    def _entries(self, table: str, port: str) -> Iterator[tuple[int, dict[str, str]]]:
        for key, entry in self.tables.get(table, {}).items():
            split = split_queue_key(key)
            if split is not None and port in split[0]:
                for queue in split[1]:
                    yield queue, entry

    def _port(self, port: str, binding: dict[str, str]) -> PortBehaviour:
        built, where = PortBuilder(), f"PORT_QOS_MAP|{port}"
        dscp_to_tc, tc_to_queue = (self._get(name.upper(), binding.get(name), where) for name in BINDINGS)
        for dscp, traffic_class in dscp_to_tc.items():
            queue = tc_to_queue.get(traffic_class, "")
            if dscp.isdigit() and queue.isdigit():
                built.dscp[int(dscp)] = int(queue)
            else:
                self._unknown(f"DSCP_TO_TC_MAP {dscp}", f"traffic class {traffic_class} leads to no queue")
        if binding.get("pfc_enable"):
            clear = CLEAR_PFC.format(number="CLASS")
            self.reading.kept.append(f"{port}: pfc_enable {binding['pfc_enable']} pauses those, drops none ({clear})")
        for number, entry in self._entries("QUEUE", port):
            self._queue(built, port, number, entry)
        for number, entry in self._entries("BUFFER_QUEUE", port):
            self._limit(built, port, number, entry)
        return built.build()

    def _limit(self, built: PortBuilder, port: str, queue: int, entry: dict[str, str]) -> None:
        profile = self._get("BUFFER_PROFILE", entry.get("profile"), f"BUFFER_QUEUE|{port}|{queue}")
        try:
            if "static_th" in profile:
                built.limits[queue] = int(profile["static_th"]) + int(profile.get("size", 0))
            elif "dynamic_th" in profile:
                built.dynamic_limits[queue] = f"dynamic_th {profile['dynamic_th']} of {profile.get('pool', '?')}"
                self.reading.kept.append(f"{port} queue {queue}: limit {built.dynamic_limits[queue]}")
        except ValueError as error:
            self._unknown(f"BUFFER_PROFILE {entry['profile']}", str(error))

    def _queue(self, built: PortBuilder, port: str, queue: int, entry: dict[str, str]) -> None:
        built.present.add(queue)
        scheduler = self._get("SCHEDULER", entry.get("scheduler"), f"QUEUE|{port}|{queue}")
        kind = scheduler.get("type", "WRR")
        if kind in ("DWRR", "WRR"):
            built.weights[queue] = int(scheduler.get("weight", 1)) if str(scheduler.get("weight", 1)).isdigit() else 1
        if "wred_profile" in entry:
            self._detect(built, queue, entry["wred_profile"])

    def _detect(self, built: PortBuilder, queue: int, name: str) -> None:
        profile, where = self.tables.get("WRED_PROFILE", {}).get(name, {}), f"WRED_PROFILE {name}"
        used: tuple[str, ...] = COLOURS
        thresholds = {colour: self._thresholds(profile, colour) for colour in COLOURS}
        if len(set(thresholds.values())) > 1:
            self._unknown(where, "colours differ; every packet of ours may have any colour, green is compared")
            used = COLOURS[:1]
        found = thresholds["green"]
        if found is None:
            self._unknown(where, "thresholds of green are missing or no numbers")
            return
        low, high, chance = found
        if low > high or low == 0 or chance > 100:
            self._unknown(where, f"{invalid_thresholds(low, high, chance)} (0 means the whole buffer)")
            return
        built.random_detect[queue] = RandomDetect(
            min_bytes=low,
            max_bytes=high,
            probability_percent=chance,
            mark_ect=profile.get("ecn") == "ecn_all" or (len(used) == 1 and "green" in profile.get("ecn", "")),
            drop_not_ect=all(profile.get(f"wred_{colour}_enable") == "true" for colour in used),
        )

    @staticmethod
    def _thresholds(profile: dict[str, str], colour: str) -> tuple[int, int, int] | None:
        try:
            low, high = int(profile[f"{colour}_min_threshold"]), int(profile[f"{colour}_max_threshold"])
            return low, high, int(profile.get(f"{colour}_drop_probability", 100))
        except (KeyError, ValueError):
            return None
