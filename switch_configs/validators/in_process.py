"""Imported validators: pyavd (EOS), nvueschema (Cumulus), netutils (structure), ocbindings (the neutral form)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

from mlt.switch_configs import openconfig
from mlt.switch_configs.errors import ParseError
from mlt.switch_configs.generator import Generated
from mlt.switch_configs.validators import Validator, number_or_text
from mlt.switch_configs.vendors.cumulus import Cumulus

from mlt._shared.extras import how_to_install


def _absent(package: str, way: str) -> str:
    return "" if find_spec(package) else f"{package} is not installed ({way})"


class Pyavd(Validator):
    """Arista's schema. The text is read leniently into structured configuration, so that only the schema decides."""

    name: ClassVar[str] = "pyavd"
    targets: ClassVar[tuple[str, ...]] = ("eos",)

    def missing(self) -> str:
        return _absent("pyavd", how_to_install("switch", "pyavd"))

    def problems_of(self, generated: Generated, files: Mapping[str, str]) -> list[str]:
        pyavd: Any = import_module("pyavd")
        structured, leftover = _eos_structured("\n".join(files.values()))
        result = pyavd.validate_structured_config(structured).validation_result
        problems = [f"{'.'.join(map(str, v.path))}: {v.message}" for v in result.violations]
        return problems + [f"no such command in the schema: {line}" for line in leftover]


_EOS_DETECT = re.compile(
    r"random-detect ecn minimum-threshold (\S+) (\S+) maximum-threshold (\S+) (\S+) "
    r"max-mark-probability (\S+) weight (\S+)"
)


def _eos_structured(text: str) -> tuple[dict[str, Any], list[str]]:
    """EOS text as AVD structured configuration, and the lines without an equivalent in it."""
    result: dict[str, Any] = {"hostname": "switch", "qos": {"map": {"dscp": []}}, "qos_profiles": []}
    result["ethernet_interfaces"] = []
    leftover: list[str] = []
    profile: dict[str, Any] = {}
    queue: dict[str, Any] = {}
    interface: dict[str, Any] = {}
    for line in (raw.strip() for raw in text.splitlines()):
        if not line or line.startswith("!"):
            continue
        if line.startswith("qos map dscp "):
            result["qos"]["map"]["dscp"].append(line.removeprefix("qos map dscp "))
        elif line.startswith("qos profile "):
            profile = {"name": line.split()[-1], "uc_tx_queues": []}
            result["qos_profiles"].append(profile)
        elif line.startswith("qos trust "):
            profile["trust"] = line.split()[-1]
        elif line.startswith("uc-tx-queue "):
            queue = {"id": number_or_text(line.split()[-1])}
            profile["uc_tx_queues"].append(queue)
        elif line.startswith(("priority", "no priority")):
            queue["priority"] = line
        elif line.startswith("bandwidth percent "):
            queue["bandwidth_percent"] = number_or_text(line.split()[-1])
        elif line == "random-detect ecn count":
            queue.setdefault("random_detect", {}).setdefault("ecn", {})["count"] = True
        elif m := _EOS_DETECT.fullmatch(line):
            threshold = {
                "units": m[2],
                "min": number_or_text(m[1]),
                "max": number_or_text(m[3]),
                "max_probability": number_or_text(m[5]),
            }
            threshold["weight"] = number_or_text(m[6])
            queue.setdefault("random_detect", {}).setdefault("ecn", {})["threshold"] = threshold
        elif line.startswith("interface "):
            interface = {"name": line.removeprefix("interface ")}
            result["ethernet_interfaces"].append(interface)
        elif line.startswith("service-profile "):
            interface["service_profile"] = line.split()[-1]
        else:
            leftover.append(line)
    return result, leftover


class Nvueschema(Validator):
    """NVUE's published schema as pydantic models; they ignore unknown keys, so this class finds ignored keys itself."""

    name: ClassVar[str] = "nvueschema"
    targets: ClassVar[tuple[str, ...]] = ("cumulus",)
    version: ClassVar[str] = "v5_9"

    def missing(self) -> str:
        return _absent("nvueschema", how_to_install("switch", "nvueschema"))

    def problems_of(self, generated: Generated, files: Mapping[str, str]) -> list[str]:
        try:
            tree = Cumulus().read_tree(files)
        except ParseError as error:
            return [str(error)]
        model: Any = import_module(f"nvueschema.models.{self.version}").NvueConfig
        try:
            kept = model.model_validate(tree).model_dump(by_alias=True, exclude_unset=True, mode="json")
        except ValueError as error:
            return [line for line in str(error).splitlines() if line.strip()][:4]
        return [f"unknown key {path}" for path in _dropped(tree, kept)]


def _dropped(tree: Any, kept: Any, path: str = "") -> Iterator[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            if not isinstance(kept, dict) or key not in kept:
                yield f"{path}/{key}"
            else:
                yield from _dropped(value, kept[key], f"{path}/{key}")


class Netutils(Validator):
    """Network-to-Code's parsers: validate only that lines nest as on the system."""

    name: ClassVar[str] = "netutils"
    targets: ClassVar[tuple[str, ...]] = ("eos", "nxos", "onyx")
    parsers: ClassVar[Mapping[str, str]] = {
        "eos": "EOSConfigParser",
        "nxos": "NXOSConfigParser",
        "onyx": "NvidiaOnyxConfigParser",
    }

    def missing(self) -> str:
        return _absent("netutils", how_to_install("switch", "netutils"))

    def problems_of(self, generated: Generated, files: Mapping[str, str]) -> list[str]:
        parser: Any = import_module("netutils.config.parser")
        comment = generated.target.comment
        # Onyx's parser knows only the single # of a saved configuration.
        text = "\n".join(
            line
            for body in files.values()
            for line in body.splitlines()
            if line.strip() and not line.lstrip().startswith(comment)
        )
        try:
            lines = getattr(parser, self.parsers[generated.target.name])(text).config_lines
        except Exception as error:
            return [f"{type(error).__name__}: {error}"]
        read = [line.config_line.strip() for line in lines]
        lost = [line.strip() for line in text.splitlines() if line.strip() not in read and line.strip() != "!"]
        orphans = [line.config_line.strip() for line in lines if line.config_line.startswith(" ") and not line.parents]
        return [f"line lost: {line}" for line in lost[:3]] + [f"line without a section: {line}" for line in orphans[:3]]


class Openconfig(Validator):
    """OpenConfig's own models validate the neutral form; reported for target linux, which expresses all of it."""

    name: ClassVar[str] = "ocbindings"
    targets: ClassVar[tuple[str, ...]] = ("linux",)

    def missing(self) -> str:
        return _absent("ocbindings", "pip install ocbindings, 370 MB")

    def problems_of(self, generated: Generated, files: Mapping[str, str]) -> list[str]:
        return self.problems_of_tree(openconfig.tree(generated.plan))

    def problems_of_tree(self, tree: dict[str, Any]) -> list[str]:
        """Problems of an OpenConfig instance, as reported by pyangbind."""
        qos: Any = import_module("ocbindings.qos").qos
        serialise: Any = import_module("pyangbind.lib.serialise")
        try:
            serialise.pybindJSONDecoder.load_ietf_json(tree["openconfig-qos:qos"], None, None, obj=qos())
        except Exception as error:
            return [f"{type(error).__name__}: {str(error)[:300]}"]
        return []
