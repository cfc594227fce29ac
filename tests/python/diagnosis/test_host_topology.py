"""``mlt doctor --topology``: sysfs, the matrix of nvidia-smi and YAML are read, and the findings name the root."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import pytest
from checks import assert_names

from mlt.diagnosis import host_topology
from mlt.diagnosis.doctor import Finding
from mlt.diagnosis.host_topology import examine_topology, from_matrix, from_yaml, read_host, this_host
from mlt.diagnosis.local_reduction import advise
from mlt.errors import ConfigError

DOCTOR = [sys.executable, "-m", "mlt.cli.main", "doctor", "--topology"]
# Figure 8 of the paper: NVLink hides how GPUs are connected over PCIe; the NIC is next to GPU 0 and 1.
_NEAR = {0: "PIX", 1: "PIX", 2: "NODE", 3: "NODE"}
FIGURE_6 = """
gpus: [{switch: P0, numa: 0}, {switch: P0, numa: 0}, {switch: P0, numa: 0}, {switch: P0, numa: 0},
       {switch: P1, numa: 1}, {switch: P1, numa: 1}, {switch: P1, numa: 1}, {switch: P1, numa: 1}]
nics: [{name: mlx5_0, switch: P2, numa: 0}]
gpu_link: 99.2 Gbit/s
cpu_link: 99.2 Gbit/s
cross_switch: 80 Gbit/s
"""


def matrix_of_figure_8(separator: str = "\t", underline: bool = True) -> str:
    names = [*(f"GPU{n}" for n in range(8)), "NIC0"]
    head = separator.join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    lines = [f"\x1b[4m{head}\x1b[0m" if underline else head]
    for n in range(8):
        cells = [" X " if n == other else "NV1" for other in range(8)]
        lines.append(separator.join([f"GPU{n}", *cells, _NEAR.get(n, "SYS"), "0-19,40-59", str(n // 4), "N/A"]))
    lines.append(separator.join(["NIC0", *(_NEAR.get(n, "SYS") for n in range(8)), " X "]))
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", "", "NIC Legend:", "", "  NIC0: mlx5_0", ""])


@pytest.mark.parametrize(("separator", "underline"), [("\t", True), ("  ", False)])
def test_matrix__of_figure_8(separator: str, underline: bool) -> None:
    host = from_matrix(matrix_of_figure_8(separator, underline))
    assert [gpu.numa for gpu in host.gpus] == [0] * 4 + [1] * 4
    assert [(nic.name, nic.numa) for nic in host.nics] == [("mlx5_0", 0)]
    assert host.nvlinks == frozenset(combinations(range(8), 2))
    assert {host.gpus[0].switch, host.gpus[1].switch} == host.shared_switches
    assert advise(host).roots == (2, 3)


def test_matrix__without_nvlink_has_the_switches() -> None:
    rows = {
        "GPU0": ["X", "PIX", "SYS", "SYS"], "GPU1": ["PIX", "X", "SYS", "SYS"],
        "GPU2": ["SYS", "SYS", "X", "PXB"], "GPU3": ["SYS", "SYS", "PXB", "X"],
    }  # fmt: skip
    text = "\t" + "\t".join([*rows, "CPU Affinity"]) + "\n"
    host = from_matrix(text + "".join("\t".join([name, *cells, "0-3"]) + "\n" for name, cells in rows.items()))
    switches = [gpu.switch for gpu in host.gpus]
    assert switches[0] == switches[1] != switches[2] == switches[3]
    assert host.nvlinks == frozenset()
    assert advise(host).strategy == "cpu-assisted"


def test_matrix__that_is_cut_off_names_the_row() -> None:
    text = matrix_of_figure_8().splitlines()
    with pytest.raises(ConfigError, match="row GPU3 of the matrix has 0 of 9 columns"):
        from_matrix("\n".join(text[:4]))
    with pytest.raises(ConfigError, match="no line begins with GPU0"):
        from_matrix("command not found")


def what(source: Path) -> str:
    return "\n".join(finding.what for finding in examine_topology(str(source)))


def test_examine__figure_6_has_the_times_of_the_paper(tmp_path: Path) -> None:
    (tmp_path / "host.yaml").write_text(FIGURE_6, encoding="utf-8")
    assert_names(what(tmp_path / "host.yaml"), "CPU-assisted", "1 GB takes 141.1 ms", "with 20% of it copied", "129 ms",
                 "99.2 Gbit/s", "175 ms around a ring", "4 times the memory traffic")  # fmt: skip


def test_examine__figure_8_names_the_root(tmp_path: Path) -> None:
    (tmp_path / "topo.txt").write_text(matrix_of_figure_8(), encoding="utf-8")
    assert_names(what(tmp_path / "topo.txt"), "reduce to GPU 2 (or GPU 3, in turn)", "28 pairs", "connect all GPUs")


def test_examine__a_root_without_nvlink_comes_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "host.yaml").write_text(
        "gpus: [{switch: P0}, {switch: P1}, {switch: P2}]\nnvlink: [[2, 0]]\nnics: [{name: eth0, switch: P0}]\n",
        encoding="utf-8",
    )
    assert_names(what(tmp_path / "host.yaml"), "reduce to GPU 1 (or GPU 2", "connect some GPUs only", "are slow")


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("gpus: [", ("not YAML", "nvidia-smi topo -m")),
        ("nics: []", ("gpus", "is required")),
        ("just words", ("expected the output of 'nvidia-smi topo -m', or YAML",)),
        ("gpus: [{switch: P0, socket: 1}]", ("gpus.0.socket", "unknown key")),
        ("gpus: [{switch: P0}]\nnvlink: [[0, 1]]", ("nvlink: [0, 1] is not a pair", "1 GPU")),
        ("gpus: [{switch: P0}]\ngpu_link: 13 GBps", ("gpu_link", "expected a rate")),
    ],
)
def test_file__that_is_wrong_names_the_key(text: str, facts: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "host.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_host(str(tmp_path / "host.yaml"))
    assert_names(str(caught.value), "host.yaml", *facts)


def test_yaml__pairs_of_nvlinks_in_either_order() -> None:
    assert from_yaml("gpus: [{switch: a}, {switch: b}]\nnvlink: [[1, 0]]").nvlinks == {(0, 1)}
    assert from_yaml("gpus: [{switch: a}, {switch: b}]\nnvlink: all").is_nvlinked
    assert not from_yaml("gpus: [{switch: a}, {switch: b}]").is_nvlinked


def sysfs(root: Path, devices: Mapping[str, Mapping[str, str]]) -> Path:
    """A tree like /sys: path below ``devices`` -> attributes of the PCI device there, and links to them all."""
    links = root / "bus" / "pci" / "devices"
    links.mkdir(parents=True)
    for place, attributes in devices.items():
        folder = root / "devices" / place
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in attributes.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{value}\n", encoding="ascii")
        (links / folder.name).symlink_to(folder)
    return root


GPU = {"class": "0x030200", "vendor": "0x10de"}
SPEED = {"max_link_speed": "8.0 GT/s PCIe", "max_link_width": "16"}
PORTS = ["pci0000:17/0000:17:00.0", "pci0000:3a/0000:3a:00.0", "pci0000:85/0000:85:00.0", "pci0000:ae/0000:ae:00.0"]


@pytest.fixture
def host_of_figure_8(tmp_path: Path) -> Path:
    devices: dict[str, Mapping[str, str]] = {port: {"class": "0x060400", **SPEED} for port in PORTS}
    for n in range(8):
        bus = f"0000:{PORTS[n // 2][8:10]}:1{n}.0".replace("0000:17", "0000:18")
        devices[f"{PORTS[n // 2]}/{bus}"] = {**GPU, **SPEED, "numa_node": str(n // 4)}
    nic = {"class": "0x020000", "vendor": "0x15b3", "numa_node": "0"}
    devices[f"{PORTS[0]}/0000:18:20.0"] = {**nic, "net/ens1/operstate": "up"}
    devices["pci0000:00/0000:00:1f.6"] = {**nic, "net/eno1/operstate": "down"}
    devices["pci0000:00/0000:00:1c.0"] = {"class": "0x030000", "vendor": "0x1a03"}  # the console of the server
    return sysfs(tmp_path / "sys", devices)


def test_sysfs__of_figure_8_without_nvidia_smi(host_of_figure_8: Path) -> None:
    host = this_host(host_of_figure_8, lambda _: None)
    assert [gpu.switch for gpu in host.gpus] == [PORTS[n // 2].partition("/")[2] for n in range(8)]
    assert [(nic.name, nic.switch, nic.numa) for nic in host.nics] == [("ens1", "0000:17:00.0", 0)]
    assert host.nvlinks is None
    assert host.gpu_link == host.cpu_link == pytest.approx(8e9 * 16 * 128 / 130)
    assert advise(host).roots == (2, 3)


def test_sysfs__with_the_numbers_and_nvlinks_of_nvidia_smi(host_of_figure_8: Path) -> None:
    buses = sorted(path.name for path in (host_of_figure_8 / "bus/pci/devices").glob("*:1?.0"))
    buses = [bus for bus in buses if "1c.0" not in bus]
    assert len(buses) == 8
    listed = "".join(f"{n}, 0000{bus.upper()}\n" for n, bus in enumerate(reversed(buses)))

    def run(command: list[str]) -> str:
        return matrix_of_figure_8() if "topo" in command else listed

    host = this_host(host_of_figure_8, run)
    assert host.is_nvlinked
    assert host.gpus[7].switch == "0000:17:00.0"  # nvidia-smi counts them the other way here
    assert advise(host).roots == (4, 5)


def test_sysfs__of_a_container_that_lacks_devices_takes_the_matrix(tmp_path: Path) -> None:
    empty = sysfs(tmp_path / "sys", {})
    host = this_host(empty, lambda command: matrix_of_figure_8() if "topo" in command else "0, 00000000:18:00.0\n")
    assert advise(host).roots == (2, 3)


def test_sysfs__unknown_rates_and_nodes_stay_unknown(tmp_path: Path) -> None:
    unknown = {"numa_node": "-1", "max_link_speed": "Unknown", "max_link_width": "255"}
    host = this_host(sysfs(tmp_path / "sys", {"pci0000:00/0000:00:05.0": {**GPU, **unknown}}), lambda _: None)
    assert (host.gpus[0].numa, host.gpu_link, host.cpu_link) == (None, None, None)
    assert host.gpus[0].switch == "0000:00:05.0"
    assert host.nvlinks == frozenset()


def test_examine__says_that_nvlinks_are_unknown(host_of_figure_8: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_topology, "this_host", lambda: this_host(host_of_figure_8, lambda _: None))
    optional = [finding for finding in examine_topology() if finding.level == "optional"]
    assert [finding.what.partition(",")[0] for finding in optional] == ["NVLinks are unknown"]
    assert all(finding.fix for finding in optional)


def test_examine__this_host() -> None:
    findings = list(examine_topology())
    assert findings
    assert {finding.level for finding in findings} <= {"ok", "optional"}


def test_command__reads_a_file_and_writes_json(tmp_path: Path) -> None:
    (tmp_path / "topo.txt").write_text(matrix_of_figure_8(), encoding="utf-8")
    words = [*DOCTOR, str(tmp_path / "topo.txt"), "--json", "-"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert any("reduce to GPU 2" in Finding(**finding).what for finding in json.loads(done.stdout))


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["/no/such/file"], ("/no/such/file", "cannot be read")),
        (["/no/such/file", "--port", "1"], ("--topology", "--port")),
        (["--job"], ("--job", "--topology")),
    ],
)
def test_command__rejects_bad_arguments(words: list[str], facts: tuple[str, ...]) -> None:
    done = subprocess.run([*DOCTOR, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (1, 2)
    assert_names(done.stderr, *facts)
    assert "Traceback" not in done.stderr
