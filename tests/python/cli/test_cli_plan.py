"""``mlt plan``: commands, exit codes and messages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checks import assert_names
from typer.main import get_command
from typer.testing import CliRunner

from mlt._shared.extras import how_to_install
from mlt.cli import root, style
from mlt.cli.plan import app
from mlt.planners.cluster import Cluster
from mlt.planners.plan import Plan, read_plan

ROOT = Path(__file__).resolve().parents[3]
TESTBED = ROOT / "examples" / "planners" / "testbed.yaml"


def mlt_plan(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_check__the_example_is_fine() -> None:
    result = mlt_plan("check", TESTBED)
    assert result.exit_code == 0
    assert_names(result.output, "9 hosts", "5 switches", "15 links", "fine")


def test_check__bad_file_is_rejected_with_line_and_expectation(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(TESTBED.read_text().replace("servers: [ps0]", "servers: [ps1]"))
    line = 1 + bad.read_text().splitlines().index("    servers: [ps1]")
    result = mlt_plan("check", bad)
    assert result.exit_code == 2
    assert_names(result.output, f"bad.yaml:{line}:", "jobs[0].servers[0]", "'ps1'", "'ps0'")


def test_assign_then_aggregate__share_one_plan_file(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    assert mlt_plan("assign", TESTBED, "-o", out).exit_code == 0
    assert mlt_plan("aggregate", TESTBED, "--method", "m-wcha", "-o", out).exit_code == 0
    entry = read_plan(out).job("vgg19")
    assert entry.assignment is not None
    assert entry.aggregation is not None
    assert entry.aggregation.method == "m-wcha"
    assert mlt_plan("check", out, "--against", TESTBED).exit_code == 0


def test_out__a_plan_of_another_cluster_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    assert mlt_plan("assign", TESTBED, "-o", out).exit_code == 0
    other = tmp_path / "other.yaml"
    other.write_text(TESTBED.read_text().replace("cpu_cores: 16", "cpu_cores: 17"))
    before = out.read_text()
    result = mlt_plan("assign", other, "-o", out)
    assert result.exit_code == 2
    assert "another version" in result.output
    assert "; name another -o FILE, or remove this one" in result.output
    assert out.read_text() == before
    out.write_text("my notes")
    assert mlt_plan("assign", TESTBED, "-o", out).exit_code == 2
    assert out.read_text() == "my notes"


def test_show__words_and_picture(tmp_path: Path) -> None:
    out, picture = tmp_path / "plan.json", tmp_path / "plan.png"
    assert mlt_plan("aggregate", TESTBED, "-o", out).exit_code == 0
    result = mlt_plan("show", TESTBED, out, "--plot", picture)
    assert result.exit_code == 0
    assert "times faster" in result.output
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_show__rejects_a_plan_for_another_cluster(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    assert mlt_plan("aggregate", TESTBED, "-o", out).exit_code == 0
    document = json.loads(out.read_text())
    document["jobs"][0]["aggregation"]["clusters"][0]["members"][0] = "w99"
    out.write_text(json.dumps(document))
    result = mlt_plan("show", TESTBED, out)
    assert result.exit_code == 2
    assert "no node 'w99'" in result.output


def test_auto__ranks_and_writes(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    result = mlt_plan("auto", TESTBED, "vgg19", "-o", out)
    assert result.exit_code == 0, result.output
    assert "all-reduce" in result.output
    assert read_plan(out).job("vgg19").estimates[0].iteration_time == pytest.approx(0.4384)


def test_auto__simulates_beside_the_model(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    result = mlt_plan("auto", TESTBED, "vgg19", "--simulate", "--packet-hops", "0.1", "-o", out)
    assert result.exit_code == 0, result.output
    assert "simulated" in result.output
    assert_names(result.output, "0.1 million packet hops", "fastest in the simulator: ")
    assert "not simulated" not in result.output
    estimates = read_plan(out).job("vgg19").estimates
    modelled = {estimate.name: estimate.iteration_time for estimate in estimates if estimate.source == "model"}
    simulated = {estimate.name: estimate.iteration_time for estimate in estimates if estimate.source == "simulator"}
    assert estimates[0].source == "model"
    assert {"byteps", "all-reduce", "parameter server", "aro"} <= set(simulated) == set(modelled)
    assert all(time > modelled[name] for name, time in simulated.items())


def test_auto__simulate_rejects_a_budget_of_zero() -> None:
    result = mlt_plan("auto", TESTBED, "vgg19", "--simulate", "--packet-hops", "0")
    assert result.exit_code == 2


def test_auto__unknown_job() -> None:
    result = mlt_plan("auto", TESTBED, "vgg")
    assert result.exit_code == 2
    assert "did you mean 'vgg19'?" in result.output


def test_aggregate__infeasible_names_the_constraint(tmp_path: Path) -> None:
    lonely = tmp_path / "lonely.yaml"
    lonely.write_text(TESTBED.read_text().replace("servers: [ps0]", "servers: []"))
    result = mlt_plan("aggregate", lonely)
    assert result.exit_code == 1
    assert "no server" in result.output


def shape(schema: dict[str, Any]) -> dict[str, tuple[list[str], list[str]]]:
    """Each model's keys and required keys: what may not drift; wording differs between pydantic versions."""
    models = {schema["title"]: schema, **schema["$defs"]}
    return {name: (sorted(m.get("properties", {})), sorted(m.get("required", []))) for name, m in models.items()}


@pytest.mark.parametrize(("kind", "model"), [("cluster", Cluster), ("plan", Plan)])
def test_schema__committed_copy_is_current(kind: str, model: type[Cluster] | type[Plan]) -> None:
    result = mlt_plan("schema", kind)
    assert result.exit_code == 0
    assert json.loads(result.output)["title"] == model.__name__
    committed = ROOT / "docs" / "schemas" / f"{kind}.schema.json"
    now, then = json.loads(result.output), json.loads(committed.read_text())
    assert shape(now) == shape(then), f"run: mlt plan schema {kind} > docs/schemas/{kind}.schema.json"


@pytest.mark.parametrize(
    ("arguments", "missing"), [(("assign", TESTBED), "scipy"), (("auto", TESTBED, "vgg19"), "scipy")]
)
def test_base_install__names_the_missing_extra(
    arguments: tuple[object, ...], missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("scipy", "scipy.optimize"):
        monkeypatch.setitem(sys.modules, module, None)
    result = mlt_plan(*arguments)
    assert result.exit_code == 1
    assert f"needs {missing}" in result.output
    assert how_to_install("plan") in result.output


def test_base_install__aggregates_and_explains_without_extras() -> None:
    # A fresh interpreter, because here scipy and matplotlib may long be imported.
    script = (
        "import sys\n"
        "for name in ('scipy', 'scipy.optimize', 'networkx', 'matplotlib', 'highspy'): sys.modules[name] = None\n"
        "from mlt.cli.plan import app\n"
        f"app(['aggregate', {str(TESTBED)!r}])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "3 aggregators for 4 workers" in done.stdout


@pytest.mark.parametrize("words", [["plan", "route"], ["plan", "topology"], ["plan", "auto"], ["plan", "show"]])
def test_base_install__shows_the_help_of_every_command(words: list[str]) -> None:
    script = (
        "import sys\n"
        "for name in ('scipy', 'scipy.optimize', 'scipy.sparse', 'networkx', 'matplotlib', 'highspy'):\n"
        "    sys.modules[name] = None\n"
        f"sys.argv = ['mlt', *{words!r}, '-h']\n"
        "from mlt.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"Usage: mlt {' '.join(words)}" in done.stdout


@pytest.mark.parametrize("words", [["auto", str(TESTBED), "vgg19"], ["route", str(TESTBED)]])
def test_output__has_the_plan_and_no_words_of_the_solvers(words: list[str]) -> None:
    # In a process of its own: HiGHS prints a banner to the file descriptor when it is used first.
    done = subprocess.run(
        [sys.executable, "-m", "mlt", "plan", *words, "-o", "-"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "jobs" in json.loads(done.stdout)
    assert "HiGHS 1" not in done.stderr


def test_check__of_a_plan_file_asks_for_its_cluster(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert mlt_plan("aggregate", TESTBED, "-o", plan).exit_code == 0
    result = mlt_plan("check", plan)
    assert result.exit_code == 2
    assert "--against CLUSTER" in result.output
    assert "unknown key" not in result.output


@pytest.mark.parametrize("arguments", [("aggregate", TESTBED, "--method", "bset"), ("schema", "plann")])
def test_choices__an_unknown_one_gets_a_suggestion(
    arguments: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        style.run(get_command(root.app), ["plan", *map(str, arguments)], "mlt")
    assert ended.value.code == 2
    assert "Did you mean" in capsys.readouterr().err
