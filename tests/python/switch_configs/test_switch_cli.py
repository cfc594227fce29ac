"""``mlt switch``: from nothing to an applied and verified file, by the command line alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checks import assert_names
from click.testing import CliRunner, Result
from switch_lab import EXAMPLE, LAYERS, text
from test_counters import OUTPUTS

from mlt.cli.switch import app


def mlt(*arguments: str | Path, stdin: str = "") -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def test_help__lists_the_way() -> None:
    done = mlt("--help")
    assert done.exit_code == 0
    for command in ("policy", "check", "generate", "verify", "rollback", "diff", "targets", "schema"):
        assert f"  {command}" in done.output


def test_policy__derives_a_file_that_check_accepts(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    sizes = ("--buffer", "4194304", "--rate", "100000000000", "--ports", "1,2")
    done = mlt("policy", "--layers", LAYERS, *sizes, "-o", file)
    assert (done.exit_code, done.output) == (0, f"written to {file}\n")  # a file was asked for, and no more
    assert mlt("check", file, "-t", "sonic@mlnx-sn2100", "-t", "onyx").exit_code == 0


def test_policy__prints_the_predicted_losses_where_it_prints_the_policy_or_if_asked(tmp_path: Path) -> None:
    sizes = ("--buffer", "4194304", "--rate", "100000000000", "--ports", "1,2")
    whole = mlt("policy", "--layers", LAYERS, *sizes)
    asked = mlt("policy", "--layers", LAYERS, *sizes, "--losses", "-o", tmp_path / "p.yaml")
    assert whole.stderr == asked.stderr
    assert (tmp_path / "p.yaml").read_text(encoding="utf-8") == whole.stdout
    table = [line for line in asked.stderr.splitlines() if line.startswith(("┃", "│"))]
    assert max(map(len, table)) <= 100
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table[1:]]
    small, large = next((row, rows[at + 1]) for at, row in enumerate(rows) if row[0] == "layers-6")
    assert (small[2], large[2]) == ("small", "large")
    assert_names(small[3], "S = ", "KiB")
    assert_names(large[3], "L = ", "KiB")
    assert all(float(cell) >= 0 for row in (small, large) for cell in row[4:7])
    assert_names(asked.stderr, "1 worker in step", "1 path", "if 1 worker sent")
    assert mlt("policy", "--layers", LAYERS, *sizes, "--no-losses").stderr == ""


def test_check__a_fresh_policy_accepts_nothing_and_the_text_states_it(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    sizes = ("--buffer", "4194304", "--rate", "100000000000", "--ports", "1,2")
    assert mlt("policy", "--layers", LAYERS, *sizes, "-o", file).exit_code == 0
    done = mlt("check", file, "-t", "cumulus", "-t", "onyx", "-t", "os10")
    assert done.exit_code == 1
    assert_names(done.output, "1 of 3 targets", "(os10)")
    assert_names(done.output, "1 pair", "0 disagree", "12 by ")
    alone = mlt("check", file, "-t", "onyx")
    assert alone.exit_code == 0
    assert "pair" not in alone.output


def test_generate__writes_files_and_reports_errors(tmp_path: Path) -> None:
    done = mlt("generate", EXAMPLE, "-t", "nxos", "--ports", "3-4", "-o", tmp_path)
    assert done.exit_code == 0
    written = (tmp_path / "nxos.apply.txt").read_text(encoding="utf-8")
    assert "interface ethernet1/4" in written
    bare = tmp_path / "bare.yaml"
    bare.write_text(text(), encoding="utf-8")
    refused = mlt("generate", bare, "-t", "os10")
    assert refused.exit_code == 1
    assert "os10: cannot express step-threshold" in refused.output
    assert mlt("generate", bare, "-t", "vax").exit_code == 2
    assert "unknown target 'vax'" in mlt("generate", bare, "-t", "vax").output
    assert "runs backwards" in mlt("generate", bare, "-t", "onyx", "--ports", "4-3").output


def test_check__ends_with_one_and_names_the_rule(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(text(s1="73728"), encoding="utf-8")
    done = mlt("check", bad)
    assert done.exit_code == 1
    assert "[s-rising]" in done.output
    assert mlt("check", tmp_path / "none.yaml").exit_code == 2


def test_diff__meaning_against_policy_and_against_device_text(tmp_path: Path) -> None:
    ours, other = tmp_path / "a.yaml", tmp_path / "b.yaml"
    ours.write_text(text(), encoding="utf-8")
    other.write_text(text(s1="43008"), encoding="utf-8")
    done = mlt("diff", ours, other, "-t", "onyx")
    assert done.exit_code == 1
    assert "port 1/2 queue 6: min-threshold: 36864 B against 43008 B" in done.output
    device = tmp_path / "running.txt"
    device.write_text(mlt("generate", ours, "-t", "onyx").output, encoding="utf-8")
    assert mlt("diff", ours, device, "-t", "onyx").exit_code == 0
    device.write_text("hostname x\n", encoding="utf-8")
    bare = mlt("diff", ours, device, "-t", "onyx")
    assert bare.exit_code == 1
    assert "port 1/2: port: present against absent" in bare.output


def test_rollback__prints_the_undo() -> None:
    done = mlt("rollback", EXAMPLE, "-t", "nxos", "--ports", "1")
    assert done.exit_code == 0
    assert "no policy-map type queuing mlt-out" in done.output


def test_verify__prints_commands_then_reads_their_output() -> None:
    commands = mlt("verify", EXAMPLE, "-t", "sonic", "--ports", "1")
    assert "show queue wredcounters Ethernet0" in commands.output
    both = mlt("verify", EXAMPLE, "-t", "sonic", "--ports", "1,2")
    assert "show queue wredcounters Ethernet4" in both.output  # else the second port is never seen
    assert both.output.count("show ecn") == 1
    read = mlt("verify", EXAMPLE, "-t", "sonic", "--ports", "1", "--partial", "-i", "-", stdin=OUTPUTS["sonic"][0])
    assert read.exit_code == 0, read.output
    assert "layers-1" in read.output
    assert "4321" in read.output
    broken = OUTPUTS["sonic"][0].replace("UC6", "UC7", 1)
    wrong = mlt("verify", EXAMPLE, "-t", "sonic", "--ports", "1", "-i", "-", stdin=broken)
    assert wrong.exit_code == 1
    assert_names(wrong.output, "must have no RED")
    assert mlt("verify", EXAMPLE, "-t", "sonic", "-i", "-", stdin="nothing").exit_code == 2


def test_verify__output_is_an_output(tmp_path: Path) -> None:
    file = tmp_path / "counters.json"
    given = OUTPUTS["sonic"][0]
    done = mlt("verify", EXAMPLE, "-t", "sonic", "--ports", "1", "--partial", "-i", "-", "--json", file, stdin=given)
    assert done.exit_code == 0, done.output
    rows = {row["queue"]: row for row in json.loads(file.read_text(encoding="utf-8"))}
    assert (rows[6]["port"], rows[6]["marked"], rows[7]["marked"]) == ("Ethernet0", 4321, None)


def test_facts__are_printed_with_their_source() -> None:
    done = mlt("facts", "cumulus/5.9@sn2700")
    assert done.exit_code == 0, done.output
    assert "red_step_cells" in done.output
    assert "mlxsw" in done.output
    unknown = mlt("facts", "sonic@my-box")
    assert "UNCONFIRMED" in unknown.output
    assert_names(unknown.output, "most restrictive")


def test_facts__without_a_target_lists_systems_and_platforms() -> None:
    done = mlt("facts")
    assert done.exit_code == 0, done.output
    for words in ("mlnx-sn2700", "7050cx3-32s", "qfx5120", "nxos", "no per-model", "sonic/202511@mlnx-sn2700"):
        assert words in done.output


def test_check__names_omitted_features_and_the_reason(tmp_path: Path) -> None:
    done = mlt("check", EXAMPLE, "-t", "sonic@mlnx-sn2700", "-t", "cumulus")
    assert done.exit_code == 0, done.output
    note = " ".join(done.output.replace("│", " ").split())
    assert note.count("without queue-limit (a limit L_i of its own for each queue): switch.buffers is keep") == 2


def test_diff__names_the_file_to_use_if_it_has_no_port(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("nothing of a switch\n", encoding="utf-8")
    done = mlt("diff", EXAMPLE, other, "-t", "cumulus", "--ports", "1")
    assert done.exit_code == 1
    assert "1 difference in meaning" in done.stderr
    assert_names(done.stderr, "notes.txt", "'nv config show -o commands'")


def test_diff__counts_the_ports_that_the_file_lacks(tmp_path: Path) -> None:
    """Those that it has were denied with the others."""
    made = mlt("generate", EXAMPLE, "-t", "onyx", "--ports", "1-4", "-o", tmp_path / "out")
    assert made.exit_code == 0, made.output
    written = tmp_path / "out" / "onyx.apply.txt"
    done = mlt("diff", EXAMPLE, written, "-t", "onyx")
    assert done.exit_code == 1
    error = " ".join(done.stderr.split())
    assert "12 of the policy's 16 ports are not in onyx.apply.txt" in error
    assert "--ports" in error
    assert "none of" not in error
    assert mlt("diff", EXAMPLE, written, "-t", "onyx", "--ports", "1-4").exit_code == 0


def test_facts__name_the_changes_of_the_release() -> None:
    """A release that no file knows was taken without a word."""
    assert_names(mlt("facts", "sonic/202505@mlnx-sn2700").output, "'config apply-patch' of 202505", "202305")
    assert "201911: taken for 202305" in mlt("facts", "sonic/201911@mlnx-sn2700").output
    assert "changes nothing written for cumulus" in mlt("facts", "cumulus/9.9@sn2700").output


@pytest.mark.parametrize("command", ["targets", "schema"])
def test_listings__print(command: str) -> None:
    done = mlt(command)
    assert done.exit_code == 0
    assert "accept" in done.output or "selective-" in done.output  # a heading of two lines


@pytest.mark.parametrize(
    ("extra", "ports", "named"),
    [
        ("accept: {nx: {fair: x}}", "[1]", ("'nx'", "eos")),
        ("", "['16-1']", ("16-1",)),
    ],
)
def test_check__a_value_that_names_nothing_is_a_wrong_file(
    tmp_path: Path, extra: str, ports: str, named: tuple[str, ...]
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(text(extra=extra, ports=ports), encoding="utf-8")
    done = mlt("check", file)
    assert done.exit_code == 2
    assert_names(done.output, f"error: {file}: ", *named)
    assert len(done.output.splitlines()) == 1


def test_check__a_broken_rule_is_a_problem_found(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(text(s1="1400"), encoding="utf-8")
    done = mlt("check", file)
    assert done.exit_code == 1
    assert_names(done.output, "[s-holds-a-packet]")
    assert "result" not in done.output
