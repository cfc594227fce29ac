from __future__ import annotations

import sys
from pathlib import Path

import pytest
from checks import assert_names
from typer.testing import CliRunner

from mlt._shared.extras import how_to_install
from mlt.cli.plan_topology import app
from mlt.planners.cluster import read_cluster
from mlt.planners.plan import read_plan
from mlt.planners.psnet.clos import fat_tree
from mlt.planners.psnet.cluster_psnet import read_psnet


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_build_place_circuits_grow__work_on_one_another_s_files(tmp_path: Path) -> None:
    empty, busy, grown, plan = (tmp_path / name for name in ("empty.yaml", "busy.json", "grown.json", "plan.json"))
    output = run("build", "psnet", 5, "--ecs-ports", 16, "--tor-uplinks", 5, "--seed", 3, "-o", empty)
    assert "4 link-disjoint paths" in output
    output = run("place", empty, "--job", "vgg=10,2,528MB", "--job", "res=30,5,97 MB", "-o", busy)
    assert "vgg: module" in output
    assert [len(job.workers) for job in read_cluster(busy).jobs] == [10, 30]
    output = run("circuits", busy, "-o", plan)
    assert "circuits change" in output
    assert not read_plan(plan).mismatches(read_cluster(busy))
    assert {entry.job for entry in read_plan(plan).jobs} == {"vgg", "res"}
    output = run("grow", busy, "-o", grown)
    assert output.count("unplug ") == 2
    assert output.count("plug   ") == 4
    assert read_psnet(read_cluster(grown)).network.wiring.modules == 6
    run("circuits", grown)


def test_build__writes_yaml_or_json(tmp_path: Path) -> None:
    out = tmp_path / "tree.json"
    run("build", "fat-tree", 4, "--rate", "10 Gbit/s", "--oversubscription", 2, "-o", out)
    expected = fat_tree(4, host_bits_per_second=10e9, fabric_bits_per_second=5e9)
    assert read_cluster(out) == expected
    run("build", "leaf-spine", 3, 2, 4, "-o", tmp_path / "ls.yaml")
    assert len(read_cluster(tmp_path / "ls.yaml").hosts) == 12


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("build", "fat-tree", 3), 2, "even number of ports"),
        (("build", "psnet", 2, "--rate", "10 furlongs"), 2, "'--rate': '10 furlongs'"),
        (("place", "NET", "--job", "x=1"), 2, "expected NAME=WORKERS,SERVERS,SIZE"),
        (("place", "NET", "--job", "x=99,1,1MB"), 2, "99 workers, 24"),
        (("circuits", "NET"), 2, "net.yaml: jobs: no job to plan"),
        (("circuits", "TREE"), 2, "tree.yaml: jobs: no job to plan"),
        (("grow", "TREE"), 2, "tree.yaml: switches: "),
        (("circuits", "MISSING"), 2, "missing.yaml"),
    ],
)
def test_commands__report_errors_in_one_line(
    tmp_path: Path, arguments: tuple[object, ...], code: int, message: str
) -> None:
    run("build", "psnet", 2, "-o", tmp_path / "net.yaml")
    run("build", "fat-tree", 4, "-o", tmp_path / "tree.yaml")
    files = {name: tmp_path / f"{name.lower()}.yaml" for name in ("NET", "TREE", "MISSING")}
    output = run(*(files.get(str(argument), argument) for argument in arguments), code=code)
    assert message in output.replace("\n", " ")
    assert "Traceback" not in output


def test_commands__name_the_extra_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("mlt.planners.psnet.")]:
        if not name.endswith(".checks"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "networkx", None)
    assert_names(run("build", "psnet", 2, code=1), "networkx", how_to_install("plan"))
    assert "20 switches" in run("build", "fat-tree", 4)  # needs none
