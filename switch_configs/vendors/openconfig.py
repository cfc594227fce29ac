"""OpenConfig: the QoS tree as RFC 7951 JSON and as a gNMI SetRequest, for systems that speak gNMI (SR Linux, EOS, ...).

Syntax: openconfig-qos and its submodules (elements, interfaces, mem-mgmt). ``enable-ecn`` and ``drop`` are separate
leaves, so the tree can express the paper's policy. Whether a device's OpenConfig agent implements both depends on the
device.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from mlt.switch_configs import openconfig
from mlt.switch_configs.behaviour import Behaviour, RandomDetect
from mlt.switch_configs.capabilities import Capabilities, Feature, Support
from mlt.switch_configs.counters import COUNTS, QueueCounters
from mlt.switch_configs.plan import Plan
from mlt.switch_configs.target import PortBuilder, Procedure, Reading, Target, Unconfirmed
from mlt.switch_configs.telemetry import read_openconfig

from mlt._shared.structured_text import SyntaxProblem, parse_json

Tree = dict[str, Any]


class OpenConfig(Target):
    """``openconfig.json`` for users and RESTCONF, ``gnmi-set.json`` for gNMI: the same tree."""

    name: ClassVar[str] = "openconfig"
    title: ClassVar[str] = "OpenConfig QoS (JSON IETF, gNMI)"
    comment: ClassVar[str] = "#"
    whole: ClassVar[str] = "a tree with openconfig-qos:qos, as gNMI Get of /qos gives it"
    whole_json: ClassVar[str] = "openconfig.json"
    capabilities: ClassVar[Capabilities] = Capabilities(
        above_max_ect="mark",
        above_max_source="openconfig-qos-mem-mgmt.yang: drop concerns packets that are not ECN capable",
        support={
            Feature.SELECTIVE_DROP: Support(
                "unconfirmed", "enable-ecn and drop are two leaves; devices may ignore one"
            ),
            Feature.STRICT_PRIORITY: Support("yes", "schedulers of priority STRICT, lowest sequence first"),
            Feature.ECN_ON_STRICT: Support("yes", "queue management profiles and schedulers are separate"),
            Feature.WEIGHTED: Support("yes", "a scheduler input's weight"),
            Feature.QUEUE_LIMIT: Support("unconfirmed", "static-shared-buffer-limit; few devices take it"),
            Feature.STEP_THRESHOLD: Support("yes", "min-threshold may equal max-threshold"),
            Feature.FAIR: Support("no", "one level of schedulers per interface", "set default.sharing: weighted"),
        },
    )
    procedure: ClassVar[Procedure] = Procedure(
        apply=(
            "mlt switch apply POLICY HOST --target openconfig --confirm 5m    (gNMI Set)",
            "or any gNMI client: gnmi-set.json is the SetRequest in protobuf's JSON; openconfig.json its value",
        ),
        verify=("gNMI Get or Subscribe: /qos/interfaces/interface[interface-id=PORT]/output/queues/queue/state",),
        undo=("gNMI Set with undo-gnmi-set.json: deletes the entries that were added",),
        notes=("queues are named q0 to q7; a device that has names of its own for them needs those instead",),
    )

    # The model's own leaves; marks and early drops are augmentations of some devices.
    counts: ClassVar[frozenset[str]] = COUNTS - {"marked", "dropped_early"}
    unconfirmed: ClassVar[tuple[Unconfirmed, ...]] = (
        Unconfirmed(r'"drop": true', "that a device's agent drops Not-ECT for 'drop' while it marks for 'enable-ecn'"),
        Unconfirmed(r'"static-shared-buffer-limit"', "that a device takes a static limit of the shared buffer"),
    )

    def native_port(self, label: str) -> str:
        return f"ethernet-1/{label}" if label.isdigit() else label

    def render(self, plan: Plan) -> dict[str, str]:
        tree = openconfig.tree(plan)
        return {"openconfig.json": _json(tree), "gnmi-set.json": _json({"update": [_update(tree)]})}

    def undo(self, plan: Plan) -> dict[str, str]:
        deletes = [_path(text) for text in undo_paths(openconfig.tree(plan))]
        return {"undo-gnmi-set.json": _json({"delete": deletes})}

    def parse(self, files: Mapping[str, str], reading: Reading | None = None) -> Behaviour:
        reading = reading or Reading()
        if len(files) == 1 and not reading.strict:  # a device's tree, whatever its file name
            files = {"openconfig.json": next(iter(files.values()))}
        tree = self._load(files, "openconfig.json")
        if "gnmi-set.json" in files:
            self._same(tree, self._load(files, "gnmi-set.json"))
        qos = self._at(tree, "openconfig-qos:qos", "openconfig.json")
        _Reader(self, qos).check()
        found = {}
        for entry in _list(qos, "interfaces", "interface"):
            port = str(entry["interface-id"])
            if reading.wants(port):
                found[port] = _Reader(self, qos).port(entry)
            else:
                reading.skipped += 1
        return found

    def _load(self, files: Mapping[str, str], name: str) -> Tree:
        if name not in files:
            raise self.fail("files", f"{name} is missing")
        try:
            found = parse_json(files[name])
        except SyntaxProblem as error:
            raise self.fail(f"{name}:{error.line or 1}", f"not JSON: {error.reason}") from error
        if not isinstance(found, dict):
            raise self.fail(name, "not a JSON object")
        return found

    def _at(self, tree: Tree, key: str, where: str) -> Tree:
        found = tree.get(key)
        if not isinstance(found, dict):
            raise self.fail(where, f"{key} is missing")
        return found

    def _same(self, tree: Tree, request: Tree) -> None:
        try:
            value = json.loads(base64.b64decode(request["update"][0]["val"]["jsonIetfVal"], validate=True))
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise self.fail("gnmi-set.json", f"not an update with a JSON IETF value: {error}") from error
        if value != {f"openconfig-qos:{key}": entry for key, entry in tree["openconfig-qos:qos"].items()}:
            raise self.fail("gnmi-set.json", "its value differs from openconfig.json")

    def parse_counters(self, text: str) -> list[QueueCounters]:
        """The state of queues as JSON: output of gNMI Get, or gnmic's and pygnmi's notifications."""
        try:
            return read_openconfig(parse_json(text))
        except (ValueError, TypeError):
            return []


def undo_paths(tree: Tree) -> list[str]:
    """Paths to delete to remove ``tree``: bindings first."""
    qos = tree["openconfig-qos:qos"]
    paths = []
    for entry in _list(qos, "interfaces", "interface"):
        at = f"/qos/interfaces/interface[interface-id={entry['interface-id']}]"
        for bound in _list(entry["input"], "classifiers", "classifier"):
            paths.append(f"{at}/input/classifiers/classifier[type={bound['type']}]")
        paths.append(f"{at}/output/scheduler-policy/config/name")
        if "config" in entry["output"]:
            paths.append(f"{at}/output/config/buffer-allocation-profile")
        for bound in _list(entry["output"], "queues", "queue"):
            paths.append(f"{at}/output/queues/queue[name={bound['name']}]/config/queue-management-profile")
    for outer, inner in (
        ("classifiers", "classifier"),
        ("scheduler-policies", "scheduler-policy"),
        ("queue-management-profiles", "queue-management-profile"),
        ("buffer-allocation-profiles", "buffer-allocation-profile"),
        ("forwarding-groups", "forwarding-group"),
        ("queues", "queue"),
    ):
        paths += [f"/qos/{outer}/{inner}[name={entry['name']}]" for entry in _list(qos, outer, inner)]
    return paths


def _update(tree: Tree) -> Tree:
    # RFC 7951: the top-level names of a value have their module as prefix.
    named = {f"openconfig-qos:{key}": entry for key, entry in tree["openconfig-qos:qos"].items()}
    value = json.dumps(named, separators=(",", ":")).encode()
    return {"path": _path("/qos"), "val": {"jsonIetfVal": base64.b64encode(value).decode("ascii")}}


def _path(text: str) -> Tree:
    """A gNMI path in protobuf's JSON. A key's value may contain slashes (interface names do)."""
    elements: list[Tree] = []
    rest = text.lstrip("/")
    while rest:
        name, keys = "", {}
        while rest and rest[0] != "/":
            if rest[0] == "[":
                key, _, tail = rest[1:].partition("=")
                keys[key], _, rest = tail.partition("]")
            else:
                name, rest = name + rest[0], rest[1:]
        elements.append({"name": name, **({"key": keys} if keys else {})})
        rest = rest.lstrip("/")
    return {"origin": "openconfig", "elem": elements}


def _json(body: Tree) -> str:
    return json.dumps(body, indent=2) + "\n"


def _list(tree: Tree, outer: str, inner: str) -> list[Tree]:
    return list(tree.get(outer, {}).get(inner, []))


class _Reader:
    """Reads one QoS tree by its YANG model, following every reference; a dangling reference is an error."""

    def __init__(self, target: OpenConfig, qos: Tree) -> None:
        self.target = target
        self.qos = qos

    def check(self) -> None:
        for outer, inner in (("classifiers", "classifier"), ("queues", "queue"), ("interfaces", "interface")):
            names = [entry.get("name", entry.get("interface-id")) for entry in _list(self.qos, outer, inner)]
            if len(names) != len(set(names)):
                raise self.target.fail(outer, f"an entry appears twice: {names}")

    def _get(self, outer: str, inner: str, name: Any, where: str) -> Tree:
        for entry in _list(self.qos, outer, inner):
            if entry.get("config", {}).get("name") == name == entry.get("name"):
                return entry
        raise self.target.fail(where, f"{inner} {name!r} does not exist")

    def _queue(self, name: Any, where: str) -> int:
        self._get("queues", "queue", name, where)
        if not (isinstance(name, str) and name[:1] == "q" and name[1:].isdigit()):
            raise self.target.fail(where, f"queue {name!r} is not one of q0 to q7")
        return int(name[1:])

    def port(self, entry: Tree) -> Any:
        where = f"interface {entry['interface-id']}"
        built = PortBuilder()
        try:
            self._classify(entry, built, where)
            self._schedule(entry["output"], built, where)
            for queue in _list(entry["output"], "queues", "queue"):
                number = self._queue(queue["name"], where)
                built.random_detect[number] = self._detect(queue["config"]["queue-management-profile"], where)
            if "config" in entry["output"]:
                self._limits(entry["output"]["config"]["buffer-allocation-profile"], built, where)
        except (KeyError, TypeError, ValueError) as error:
            raise self.target.fail(where, f"missing or wrong: {error}") from error
        return built.build()

    def _classify(self, entry: Tree, built: PortBuilder, where: str) -> None:
        bound = {one["type"]: one["config"] for one in _list(entry["input"], "classifiers", "classifier")}
        if set(bound) != set(openconfig.FAMILIES):
            raise self.target.fail(where, f"classifiers for {sorted(bound)}; both IPV4 and IPV6 are needed")
        maps = {family: dict(self._terms(config, family, where)) for family, config in bound.items()}
        if maps["IPV4"] != maps["IPV6"]:
            raise self.target.fail(where, "IPv4 and IPv6 classifiers disagree")
        built.dscp = maps["IPV4"]

    def _terms(self, config: Tree, family: str, where: str) -> Iterator[tuple[int, int]]:
        classifier = self._get("classifiers", "classifier", config["name"], where)
        if not classifier["config"]["type"] == config["type"] == family:
            raise self.target.fail(where, f"classifier {config['name']} is not of type {family}")
        seen: set[int] = set()
        for term in _list(classifier, "terms", "term"):
            group = self._get("forwarding-groups", "forwarding-group", term["actions"]["config"]["target-group"], where)
            for dscp in term["conditions"][openconfig.FAMILIES[family][1]]["config"]["dscp-set"]:
                if type(dscp) is not int or not 0 <= dscp < 64 or dscp in seen:
                    raise self.target.fail(where, f"dscp {dscp!r} is out of range or matched twice")
                seen.add(dscp)
                yield dscp, self._queue(group["config"]["output-queue"], where)

    def _schedule(self, output: Tree, built: PortBuilder, where: str) -> None:
        name = output["scheduler-policy"]["config"]["name"]
        policy = self._get("scheduler-policies", "scheduler-policy", name, where)
        above = 8
        for entry in sorted(_list(policy, "schedulers", "scheduler"), key=lambda one: int(one["config"]["sequence"])):
            (source,) = entry["inputs"]["input"]
            number = self._queue(source["config"]["queue"], where)
            if number in built.present:
                raise self.target.fail(where, f"queue q{number} is scheduled twice")
            built.present.add(number)
            kind = entry["config"].get("priority")
            if kind == "STRICT" and number < above:
                above = number
            elif kind is None and "weight" in source["config"]:
                built.weights[number] = int(source["config"]["weight"])
            else:
                raise self.target.fail(where, f"queue q{number}: priority {kind!r} out of order, or no weight")

    def _detect(self, profile: str, where: str) -> RandomDetect:
        found = self._get("queue-management-profiles", "queue-management-profile", profile, where)
        config = found["wred"]["uniform"]["config"]
        low, high = int(config["min-threshold"]), int(config["max-threshold"])
        chance = int(config["max-drop-probability-percent"])
        if not 0 < low <= high or not 0 < chance <= 100:
            raise self.target.fail(where, f"{profile}: min {low}, max {high}, probability {chance}")
        for leaf in ("enable-ecn", "drop"):
            if not isinstance(config[leaf], bool):
                raise self.target.fail(where, f"{profile}: {leaf} is {config[leaf]!r}, not true or false")
        known = {"min-threshold", "max-threshold", "max-drop-probability-percent", "enable-ecn", "drop"}
        if unknown := set(config) - known:
            raise self.target.fail(where, f"{profile}: unknown {sorted(unknown)}")
        return RandomDetect(
            min_bytes=low,
            max_bytes=high,
            probability_percent=chance,
            mark_ect=config["enable-ecn"],
            drop_not_ect=config["drop"],
        )

    def _limits(self, name: str, built: PortBuilder, where: str) -> None:
        profile = self._get("buffer-allocation-profiles", "buffer-allocation-profile", name, where)
        for queue in _list(profile, "queues", "queue"):
            config = queue["config"]
            if config["shared-buffer-limit-type"] != "openconfig-qos:STATIC" or config["use-shared-buffer"] is not True:
                raise self.target.fail(where, f"buffer of {queue['name']}: not a static limit of the shared buffer")
            built.limits[self._queue(queue["name"], where)] = int(config["static-shared-buffer-limit"])


TARGET = OpenConfig()
