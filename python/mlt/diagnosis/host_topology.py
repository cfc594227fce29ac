"""``mlt doctor --topology``: the PCIe and NVLink layout of a host, and the best reduction among its GPUs.

Reads sysfs and, if it is there, ``nvidia-smi``; or a file with the text of ``nvidia-smi topo -m`` or with YAML::

    gpus:                                       # in the order of their numbers
      - {switch: P0, numa: 0}                   # any name of the PCIe link to the CPU; the NUMA node may be absent
      - {switch: P1, numa: 0}
    nics: [{name: mlx5_0, switch: P0, numa: 0}]
    nvlink: all                                 # or pairs such as [[0, 1], [2, 3]], or none
    gpu_link: 105 Gbit/s                        # optional: GPU to switch, switch to CPU, copies between switches
    cpu_link: 105 Gbit/s
    cross_switch: 80 Gbit/s

The model and its assumptions are in ``mlt.diagnosis.local_reduction``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mlt._shared.counts import count_of
from mlt._shared.field_errors import expectation, given
from mlt._shared.structured_text import SyntaxProblem, parse_yaml
from mlt._shared.text_files import UnreadableError, read_text
from mlt._shared.unit_fields import RATE, Unit
from mlt._shared.units import format_loss, format_rate, format_time
from mlt.diagnosis.doctor import Finding
from mlt.diagnosis.local_reduction import (
    Device,
    Host,
    advise,
    best_part,
    completion_seconds,
    components,
    gpus_per_switch,
    ring_seconds,
)
from mlt.errors import ConfigError

# Size for which times are shown, as in the paper.
SIZE_BYTES = 1e9
# PCI classes: 3D, display and VGA controllers. Of the last also the consoles of servers, so only those of two vendors.
_GPU_CLASSES = ("0x0302", "0x0380")
_VGA_CLASS = "0x0300"
_GPU_VENDORS = ("0x10de", "0x1002")
_NETWORK_CLASS = "0x02"
# Relations of ``nvidia-smi topo`` between devices whose way to each other does not pass the CPU.
_SAME_SWITCH = ("PIX", "PXB")
_SAME_NODE = (*_SAME_SWITCH, "PHB", "NODE")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_PCIE_SPEED = re.compile(r"([0-9.]+) GT/s")
_COMMAND_SECONDS = 20

Run = Callable[[list[str]], str | None]


class _DeviceFields(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    switch: Annotated[str, Field(min_length=1)]
    numa: Annotated[int, Field(ge=0)] | None = None


class _NicFields(_DeviceFields):
    name: Annotated[str, Field(min_length=1)]


class _HostFields(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    gpus: tuple[_DeviceFields, ...]
    nics: tuple[_NicFields, ...] = ()
    nvlink: Literal["all", "none"] | tuple[tuple[int, int], ...] = "none"
    gpu_link: Annotated[float, Unit(RATE, above=0)] | None = None
    cpu_link: Annotated[float, Unit(RATE, above=0)] | None = None
    cross_switch: Annotated[float, Unit(RATE, above=0)] | None = None


def examine_topology(source: str | None = None) -> Iterator[Finding]:
    """Findings about the GPUs, NICs and NVLinks of this host, or of the file ``source``, and the best reduction.

    Raises ConfigError if the file is neither of the two kinds.

    >>> [finding.level for finding in examine_topology()]  # doctest: +SKIP
    ['ok', 'ok']
    """
    host = this_host() if source is None else read_host(source)
    yield from _layout(host)
    yield from _advice(host)


def read_host(source: str) -> Host:
    """The host that a file describes: text of ``nvidia-smi topo -m``, or YAML. Raises ConfigError."""
    try:
        text = read_text(source)
    except UnreadableError as error:
        raise ConfigError(str(error)) from None
    try:
        return from_matrix(text) if _header(text) is not None else from_yaml(text)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def from_yaml(text: str) -> Host:
    """The host of a YAML text. Raises ConfigError with the key that is wrong.

    >>> from_yaml("gpus: [{switch: P0}, {switch: P1}]").gpu_switches == {"P0", "P1"}
    True
    """
    try:
        fields = _HostFields.model_validate(parse_yaml(text))
    except SyntaxProblem as error:
        raise ConfigError(f"{error} (it is not the output of 'nvidia-smi topo -m' either)") from None
    except ValidationError as error:
        problem = error.errors()[0]
        if not problem["loc"]:
            raise ConfigError(
                "expected the output of 'nvidia-smi topo -m', or YAML with gpus, nics and nvlink"
            ) from None
        where = ".".join(str(part) for part in problem["loc"])
        raise ConfigError(f"{where}: {expectation(problem)}{given(problem['input'])}") from None
    count = len(fields.gpus)
    if isinstance(fields.nvlink, str):
        pairs = list(combinations(range(count), 2)) if fields.nvlink == "all" else []
    else:
        for first, second in fields.nvlink:
            if not (0 <= first < count and 0 <= second < count and first != second):
                raise ConfigError(f"nvlink: [{first}, {second}] is not a pair of two of the {count_of(count, 'GPU')}")
        pairs = [(min(pair), max(pair)) for pair in fields.nvlink]
    return Host(
        tuple(Device(f"GPU {position}", one.switch, one.numa) for position, one in enumerate(fields.gpus)),
        tuple(Device(one.name, one.switch, one.numa) for one in fields.nics),
        frozenset(pairs),
        fields.gpu_link,
        fields.cpu_link,
        fields.cross_switch,
    )


def from_matrix(text: str) -> Host:
    """The host of the text that ``nvidia-smi topo -m`` prints.

    Two devices share a switch if a chain of relations PIX and PXB leads from one to the other. The matrix has no rates,
    and between GPUs with NVLink no relation over PCIe. Raises ConfigError for a row with too few columns.
    """
    lines = [_ANSI.sub("", line) for line in text.splitlines()]
    names = _header(text)
    if names is None:
        raise ConfigError("has no matrix of 'nvidia-smi topo -m': no line begins with GPU0")
    rows = {words[0]: words[1:] for line in lines if (words := line.split()) and words[0] in names}
    for name in names:
        if len(rows.get(name, ())) < len(names):
            raise ConfigError(f"row {name} of the matrix has {len(rows.get(name, ()))} of {len(names)} columns")
    relation = {(first, second): rows[names[first]][second] for first, second in combinations(range(len(names)), 2)}
    switch_of = {
        member: names[members[0]]
        for members in components(len(names), (pair for pair, kind in relation.items() if kind in _SAME_SWITCH))
        for member in members
    }
    has_nodes = any("NUMA Affinity" in line for line in lines)
    nodes = {
        position: int(rows[name][len(names) + 1])
        for position, name in enumerate(names)
        if has_nodes and len(rows[name]) > len(names) + 1 and rows[name][len(names) + 1].isdigit()
    }
    gpus = [position for position, name in enumerate(names) if name.startswith("GPU")]
    order = {position: number for number, position in enumerate(gpus)}
    legend = dict(re.findall(r"^\s*(NIC\d+): (\S+)", "\n".join(lines), re.MULTILINE))
    nics = []
    for position, name in enumerate(names):
        if position in order:
            continue
        near = (nodes.get(gpu) for gpu in gpus if relation[min(gpu, position), max(gpu, position)] in _SAME_NODE)
        nics.append(Device(legend.get(name, name), f"of {switch_of[position]}", next(near, None)))
    return Host(
        tuple(Device(f"GPU {order[one]}", f"of {switch_of[one]}", nodes.get(one)) for one in gpus),
        tuple(nics),
        frozenset(
            (order[first], order[second])
            for (first, second), kind in relation.items()
            if first in order and second in order and re.fullmatch(r"NV\d+", kind)
        ),
    )


def _header(text: str) -> list[str] | None:
    """The names of the columns that are devices; None without such a matrix."""
    for line in text.splitlines():
        words = _ANSI.sub("", line).split()
        if words[:1] == ["GPU0"] and "X" not in words:
            end = words.index("CPU") if "CPU" in words else len(words)
            return words[:end]
    return None


def this_host(sysfs: Path = Path("/sys"), run: Run | None = None) -> Host:
    """The GPUs and NICs in ``sysfs``, with the GPUs' numbers and NVLinks of ``nvidia-smi`` if it is there.

    NICs are those whose interface is up, or that have RDMA. ``run`` executes a command and returns its output, None if
    it fails. Rates are the smallest that the GPUs' links and their switches' links to the CPU are made for; PCIe itself
    takes a few percent of them.
    """
    execute = run or _run
    devices = sorted((sysfs / "bus" / "pci" / "devices").glob("*"))
    gpus = {path.name.lower(): path.resolve() for path in devices if _is_gpu(path)}
    nics = [(name, path.resolve()) for path in devices if (name := _nic_name(path)) is not None]
    listed = execute(["nvidia-smi", "--query-gpu=index,pci.bus_id", "--format=csv,noheader"])
    matrix = execute(["nvidia-smi", "topo", "-m"]) if listed is not None else None
    nvlinks: frozenset[tuple[int, int]] | None = None if len(gpus) > 1 else frozenset()
    if listed is not None and matrix is not None and _header(matrix) is not None:
        of_matrix = from_matrix(matrix)
        # Its bus ids have eight digits of domain, those of sysfs four. A container may see fewer GPUs than the host.
        numbered = [bus.strip().lower()[-12:] for _, _, bus in (line.partition(",") for line in listed.splitlines())]
        if len(numbered) != len(of_matrix.gpus) or not set(numbered) <= set(gpus):
            return of_matrix
        gpus, nvlinks = {bus: gpus[bus] for bus in numbered}, of_matrix.nvlinks
    return Host(
        tuple(Device(f"GPU {n}", _root_port(path).name, _node(path)) for n, path in enumerate(gpus.values())),
        tuple(Device(name, _root_port(path).name, _node(path)) for name, path in nics),
        nvlinks,
        _slowest(list(gpus.values())),
        _slowest([_root_port(path) for path in gpus.values()]),
    )


def _run(command: list[str]) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _attribute(path: Path, name: str) -> str:
    try:
        return (path / name).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _is_gpu(path: Path) -> bool:
    kind = _attribute(path, "class")
    return kind.startswith(_GPU_CLASSES) or (kind.startswith(_VGA_CLASS) and _attribute(path, "vendor") in _GPU_VENDORS)


def _nic_name(path: Path) -> str | None:
    """The name of an interface or RDMA device of the PCI device ``path``; None if it is no NIC in use."""
    if not _attribute(path, "class").startswith(_NETWORK_CLASS):
        return None
    rdma = sorted((path / "infiniband").glob("*"))
    up = [one for one in sorted([*path.glob("net/*"), *path.glob("virtio*/net/*")])
          if _attribute(one, "operstate") == "up"]  # fmt: skip
    return next((one.name for one in (*up, *rdma)), None)


def _root_port(path: Path) -> Path:
    """The port of the CPU that the device is behind: the folder below that of the root bus, ``pci0000:17``."""
    below = path
    while below.parent != below and not re.fullmatch(r"pci[0-9a-f]+:[0-9a-f]+", below.parent.name):
        below = below.parent
    return below if below.parent != below else path


def _node(path: Path) -> int | None:
    text = _attribute(path, "numa_node")
    return int(text) if text.isdigit() else None  # -1: unknown


def _slowest(paths: list[Path]) -> float | None:
    rates = [rate for path in paths if (rate := _link_rate(path)) is not None]
    return min(rates) if rates and len(rates) == len(paths) else None


def _link_rate(path: Path) -> float | None:
    """Bit/s of a PCIe link, of its speed and width; its current speed would be that of a GPU that saves energy."""
    speed = _PCIE_SPEED.match(_attribute(path, "max_link_speed"))
    width = _attribute(path, "max_link_width")
    if speed is None or not width.isdigit() or not int(width):
        return None
    coding = 8 / 10 if float(speed[1]) <= 5 else 128 / 130
    return float(speed[1]) * 1e9 * coding * int(width)


def _layout(host: Host) -> Iterator[Finding]:
    if not host.gpus:
        yield Finding("ok", "no GPU on this host")
        return
    by_switch: dict[str, list[str]] = {}
    for one in (*host.gpus, *host.nics):
        by_switch.setdefault(one.switch, []).append(one.name)
    groups = "; ".join(f"{switch}: {', '.join(names)}" for switch, names in by_switch.items())
    yield Finding("ok", f"devices by their PCIe link to the CPU: {groups}")
    if host.nvlinks is None:
        yield Finding(
            "optional",
            "NVLinks are unknown, because nvidia-smi is not here: the advice is that for GPUs without them",
            "run it where nvidia-smi is, or on the output of 'nvidia-smi topo -m': mlt doctor --topology FILE",
        )
    elif host.nvlinks:
        reach = "connect all GPUs" if host.is_nvlinked else "connect some GPUs only, which counts as none"
        yield Finding("ok", f"NVLinks between {count_of(len(host.nvlinks), 'pair')} of GPUs {reach}")
    if not host.nics:
        yield Finding("ok", "no NIC is known: none shares a PCIe link with a GPU")


def _advice(host: Host) -> Iterator[Finding]:
    advice = advise(host)
    if advice.strategy == "reduce-broadcast":
        names = [host.gpus[root].name for root in advice.roots]
        others = f" (or {', '.join(names[1:])}, in turn)" if names[1:] else ""
        yield Finding(
            "ok",
            f"best: reduce to {names[0]}{others}, and broadcast from there: it shares no PCIe link to the CPU with a "
            "NIC, which other GPUs do",
        )
        if not host.is_nvlinked:
            yield Finding(
                "ok",
                "without NVLink between all GPUs, copies between switches are slow: measure sums within each switch, "
                "then in the CPU, as well",
            )
    elif advice.strategy == "reduce-scatter-all-gather":
        why = "NVLink" if host.is_nvlinked else "one switch"
        yield Finding("ok", f"best: reduce-scatter and all-gather among all GPUs, over {why}; no root is better")
    elif advice.strategy == "cpu-assisted":
        yield Finding(
            "ok",
            "best: reduce-scatter among the GPUs of each switch, sums of all switches in the CPU, then all-gather "
            "within each switch (CPU-assisted aggregation); no copies between switches",
        )
        yield from _times(host)
    elif host.gpus:
        yield Finding("ok", "one GPU: nothing to reduce within the host")


def _times(host: Host) -> Iterator[Finding]:
    """The model's times for 1 GB, where the links' rates are known."""
    if host.gpu_link is None or host.cpu_link is None:
        return
    gpus, rates = gpus_per_switch(host), {"gpu_link": host.gpu_link, "cpu_link": host.cpu_link}
    part = best_part(gpus=gpus, **rates)

    def seconds(x: float) -> str:
        return format_time(round(completion_seconds(x, gpus=gpus, size=SIZE_BYTES, **rates), 6))

    text = f"1 GB takes {seconds(0)} by the model, with {format_rate(host.gpu_link)} from a GPU to its switch and "
    text += f"{format_rate(host.cpu_link)} from there to the CPU"
    if host.cross_switch is not None:
        ring = ring_seconds(gpus=len(host.gpus), size=SIZE_BYTES, rate=host.cross_switch)
        text += f"; {format_time(round(ring, 6))} around a ring of all GPUs"
    if part:
        text += (
            f"; with {format_loss(part)} of it copied to the CPU by every GPU {seconds(part)}, and {gpus} times the "
        )
        text += "memory traffic for that part"
    yield Finding("ok", text)
