"""``tools/scale``: its verdicts and its page without measuring, and its short form with real ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from checks import assert_names, names
from loading import load_folder

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "tools" / "scale"


@pytest.fixture(scope="module")
def scale() -> ModuleType:
    return load_folder(FOLDER, "mlt_scale")


def job(ranks: int, **more: Any) -> dict[str, Any]:
    seconds = {"first_seconds": 9.0, "seconds": [0.06, 0.05, 0.04], "cpu_seconds": 0.1}
    reduced = {size: dict(seconds) for size in ("4 B", "1 MiB")}
    return {
        "transport": "mlt", "ranks": ranks, "connect_seconds": 5.0, "connect_cpu_seconds": 1.0,
        "kib_per_rank": 4_000.0 + 1.5 * (ranks - 1), "kib_per_rank_used": 5_000.0, "descriptors_per_rank": 3.0 * ranks,
        "all_reduce": reduced, "idle_core_percent": 2.0, "idle_wakes_per_rank_second": 4.0, **more,
    }  # fmt: skip


def key_run(count: int, per_key: float, **more: Any) -> dict[str, Any]:
    return {
        "keys": count, "seconds": [per_key * count] * 3, "seconds_per_key": per_key, "packets": 1_000,
        "data_packets": 990, "probes": 10, "tcp_fallbacks": 0, "failures": [], **more,
    }  # fmt: skip


def message_run(rate: float, transport: str = "mlt", posts: str = "lists of 64") -> dict[str, Any]:
    return {
        "transport": transport, "datapath": "UDP", "posts": posts, "messages_per_second": rate,
        "cpu_microseconds_per_message": 3.0,
    }  # fmt: skip


def simulated_run(ranks: int, **more: Any) -> dict[str, Any]:
    levels = ranks.bit_length() - 1
    return {
        "ranks": ranks, "connections_per_rank": levels + 1.0, "events_per_rank": 80.0 * levels,
        "datagrams_per_rank": 20.0 * levels, "cpu_microseconds_per_rank": 200.0, "kib_per_rank": 1_000.0 + levels,
        "cpu_seconds": 2.0, "set_up_cpu_seconds": 1.0, "virtual_microseconds": 900.0, **more,
    }  # fmt: skip


def figures(scale: ModuleType) -> dict[str, Any]:
    """The figures of a run that meets every target."""
    return {
        "jobs": [job(ranks) for ranks in scale.LONG.sizes],
        "keys": [key_run(count, 0.001) for count in scale.LONG.keys],
        "messages": [message_run(300_000), message_run(300_000, posts="one by one"), message_run(1_000, "gloo")],
        "simulated": [simulated_run(ranks) for ranks in scale.LONG.simulated_sizes],
        "gloo": [job(8, transport="gloo")],
    }


def missed(scale: ModuleType, found: dict[str, Any]) -> list[str]:
    return [one.case for one in scale.check(scale.LONG, found) if one.met is False]


def test_check__of_a_run_within_every_target(scale: ModuleType) -> None:
    verdicts = scale.check(scale.LONG, figures(scale))
    assert missed(scale, figures(scale)) == []
    assert sum(one.met is True for one in verdicts) == 15
    assert all(one.met is None for one in verdicts if one.run == "gloo" or "gloo" in one.case)


@pytest.mark.parametrize(
    ("part", "place", "values", "case"),
    [
        ("jobs", -1, {"connect_seconds": 10.1}, "256 ranks connected"),
        ("jobs", -2, {"idle_core_percent": 3.1}, "idle job of 128 ranks"),
        ("jobs", -1, {"kib_per_rank": 4_000 + 2.1 * 255}, "idle peer"),
        ("keys", -1, {"seconds_per_key": 0.00151}, "time per key"),
        ("keys", 0, {"failures": ["rank 3: silent for 3 s"]}, "silent peers"),
        ("keys", 1, {"probes": 11}, "probes"),
        ("messages", 0, {"messages_per_second": 299_000}, "mlt, UDP, lists of 64"),
        ("messages", 1, {"messages_per_second": 299_000}, "mlt, UDP, one by one"),
        ("simulated", -1, {"events_per_rank": 970.0}, "4,096 simulated ranks"),
        ("simulated", -1, {"kib_per_rank": 2_100.0}, "memory of a rank"),
    ],
)
def test_check__names_the_missed_target(
    scale: ModuleType, part: str, place: int, values: dict[str, Any], case: str
) -> None:
    found = figures(scale)
    found[part][place].update(values)
    (one,) = missed(scale, found)
    assert case in one


@pytest.mark.parametrize(("size", "limit"), [("4 B", 0.1), ("1 MiB", 1.0)])
def test_check__takes_the_median_all_reduce(scale: ModuleType, size: str, limit: float) -> None:
    found = figures(scale)
    found["jobs"][-1]["all_reduce"][size]["seconds"] = [0.9 * limit, 1.1 * limit, 5 * limit]
    (one,) = missed(scale, found)
    assert_names(one, "256 ranks", size)


def test_check__a_rank_without_its_peers(scale: ModuleType) -> None:
    found = figures(scale)
    for one in found["jobs"]:
        one["kib_per_rank"] += 2_200
    assert missed(scale, found) == ["idle rank, without its peers"]


def test_page__has_tables_arithmetic_and_command(scale: ModuleType) -> None:
    lines = scale.table(scale.check(scale.LONG, figures(scale)))
    text = scale.pages.page(figures(scale), lines, "a head", "make scale")
    assert text.count("| yes |") == 15
    assert "| 1,024 | 11 | 800 | 200 | 200 us | 1,010 | 900 us |" in text
    assert "| 256 | mlt | 5.00 s |" in text
    assert "| private memory | 3.9 MiB and 1.5 KiB a peer | 19 MiB |" in text
    assert "| 2,000 | 2.00, 2.00, 2.00 s | 1.00 | 1,000 | 10 (1.0 %) | 0 |" in text
    assert "Command: `make scale`" in text


def test_draw__one_picture(scale: ModuleType, tmp_path: Path) -> None:
    scale.pages.draw(figures(scale), tmp_path / "scale.png")
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")


class Obedient:
    """A process of a team, as these tests serve it."""

    def __init__(self, index: int) -> None:
        self._index = index

    def divide(self, number: int) -> float:
        return number / self._index

    def vanish(self) -> None:
        if self._index == 1:
            os._exit(3)


def test_team__names_the_rank_and_the_command_that_failed(scale: ModuleType) -> None:
    from team import Team

    with Team(3, Obedient, "a job") as team:
        assert team.order("divide", 6, limit=30, members=[1, 2]).values == [6.0, 3.0]
        with pytest.raises(RuntimeError, match=names("a job", "rank 0", "divide", "ZeroDivisionError")):
            team.order("divide", 6, limit=30)
    with Team(3, Obedient, "a job") as team, pytest.raises(RuntimeError, match=names("rank 1", "died", "vanish")):
        team.order("vanish", limit=30)


def test_measure__a_case_that_failed_misses_its_targets(
    scale: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def job_of(transport: str, ranks: int, *, repetitions: int, idle_seconds: float) -> dict[str, Any]:
        if ranks == 256:
            raise RuntimeError("rank 5 died during all_reduce")
        return job(ranks, transport=transport)

    monkeypatch.setattr(scale.cases, "job", job_of)
    monkeypatch.setattr(scale.cases, "key_rounds", lambda _, keys, *, rounds: key_run(keys, 0.001))
    monkeypatch.setattr(scale.cases, "simulated_job", simulated_run)
    monkeypatch.setattr(scale.cases, "small_messages", lambda transport, *_: message_run(400_000, transport))
    found = scale.measure(scale.LONG)
    assert found["jobs"][-1] == {"transport": "mlt", "ranks": 256, "error": "rank 5 died during all_reduce"}
    verdicts = scale.check(scale.LONG, found)
    assert [one.case for one in verdicts if one.met is False] == [
        "256 ranks connected", "256 ranks, all-reduce of 4 B", "256 ranks, all-reduce of 1 MiB"
    ]  # fmt: skip
    text = scale.pages.page(found, scale.table(verdicts), "a head", "make scale")
    assert "Failed: rank 5 died during all_reduce" in text
    scale.pages.draw(found, tmp_path / "scale.png")


def test_simulated_job__names_what_failed(scale: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "mlt_sim_scale"
    monkeypatch.setattr(scale.cases, "SIMULATION", program)
    with pytest.raises(RuntimeError, match=names("mlt_sim_scale", "not built", "make scale")):
        scale.cases.simulated_job(64)
    program.write_text("#!/bin/sh\necho no memory >&2; exit 1\n", encoding="ascii")
    program.chmod(0o755)
    with pytest.raises(RuntimeError, match=names("64 simulated ranks", "no memory")):
        scale.cases.simulated_job(64)
    program.write_text('#!/bin/sh\necho "{\\"ranks\\": $2}"\n', encoding="ascii")
    assert scale.cases.simulated_job(64) == {"ranks": 64}


def test_check__messages_beside_bare_sockets(scale: ModuleType) -> None:
    found = figures(scale)
    found["messages"][1:2] = [message_run(90_000, posts="one by one"), message_run(150_000, "sockets")]
    lists, single, sockets, gloo = (one for one in scale.check(scale.LONG, found) if one.run == "messages")
    assert (lists.met, single.met, sockets.met, gloo.met) == (True, False, None, None)
    assert_names(lists.case, "mlt", "UDP", "lists of 64")
    assert_names(lists.measured, "2.00 of bare sockets")
    assert_names(single.measured, "0.60 of bare sockets")
    assert "of bare" not in sockets.measured


def test_check__failed_keys_and_messages(scale: ModuleType) -> None:
    found = figures(scale)
    found["keys"][-1] = {"workers": 16, "keys": 2_000, "error": "rank 16 died during push_pull"}
    found["messages"][0] = {"transport": "mlt", "datapath": "UDP", "error": "rank 1 died"}
    silent, messages = (one for one in scale.check(scale.LONG, found) if one.met is False)
    assert_names(silent.measured, "rank 16 died")
    assert_names(messages.measured, "rank 1 died")


@pytest.mark.parametrize(("limit", "code"), [(300_000, 0), (300_001, 1)])
def test_main__the_short_form_fails_beyond_a_limit(
    scale: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: int, code: int
) -> None:
    monkeypatch.setattr(scale, "measure", lambda _: figures(scale))
    monkeypatch.setattr(scale, "SHORT", replace(scale.LONG, messages_per_second=limit))
    monkeypatch.setattr(sys, "argv", ["scale", "--short", "--output", str(tmp_path)])
    assert scale.main() == code
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_short_form__64_ranks_and_600_keys_stay_within_their_limits() -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER), "--short"], capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "**no**" not in done.stdout
    for case in ("| 64 ranks connected |", "| idle peer |", "600: "):
        assert case in done.stdout
