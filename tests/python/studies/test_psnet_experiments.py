from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mlt.planners.cluster import dump_cluster
from mlt.planners.psnet.cluster_io import psnet_cluster
from mlt.planners.psnet.psnet import Module, build_psnet
from studies.psnet import figures, study, testbed
from studies.psnet.__main__ import app

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results" / "psnet"


def test_figure_6a__k_2_overlaps_k_4_and_k_1_takes_twice_as_long() -> None:
    k1, k2, k4 = figures.figure_6a()
    assert k2.seconds == k4.seconds
    for slow, fast in zip(k1.seconds, k2.seconds, strict=True):
        assert slow == pytest.approx(2 * fast, rel=1e-2)  # 20 us of latency keep it from being exact
    assert all(list(line.seconds) == sorted(line.seconds, reverse=True) for line in (k1, k2, k4))


def test_figure_6b__one_module_is_fastest_and_the_evener_the_split_the_slower() -> None:
    one, *splits = figures.figure_6b()
    for n in range(len(one.x)):
        at = [line.seconds[n] for line in splits]
        assert one.seconds[n] < min(at)
        assert at == sorted(at)


def test_figure_7__psnet_is_first_and_oversubscription_costs_when_servers_share_racks() -> None:
    lines = {line.label: line.seconds for line in figures.figure_7()}
    psnet = lines.pop("PSNet")
    assert all(p < t for other in lines.values() for p, t in zip(psnet, other, strict=True))
    packed = [lines[f"fat-tree r = {r}, servers packed"][0] for r in (1, 2, 5)]
    assert packed[1] / packed[0] == pytest.approx(2, rel=1e-3)
    assert packed[2] / packed[0] == pytest.approx(5, rel=1e-3)
    assert packed[0] / psnet[0] == pytest.approx(3, rel=1e-3)  # R = 3 NICs against one


@pytest.mark.parametrize("model", ["VGG-16", "ResNet50"])
def test_testbed__printed_speed_up_lies_between_computation_and_communication(model: str) -> None:
    psnet, tree = testbed.transfers(model, 1000.0, oversubscription=1)
    assert 1 < testbed.PRINTED[model] < tree.seconds / psnet.seconds == pytest.approx(3.0, rel=1e-3)


def test_testbed__one_server_rate_gives_both_printed_speed_ups_within_one_per_cent() -> None:
    for mbits in testbed.MBITS:
        rate = testbed.common_server_rate(mbits)
        rows = [row for row in testbed.figure_13(rate, mbits=[mbits]) if row.oversubscription == 1]
        assert {row.model for row in rows} == set(testbed.PRINTED)
        for row in rows:
            assert row.ratio_most == pytest.approx(testbed.PRINTED[row.model], rel=0.01)


def test_testbed__speed_up_falls_with_bandwidth_so_up_to_means_the_lowest() -> None:
    rows = testbed.figure_13(testbed.common_server_rate(200.0))
    for model in testbed.MODELS:
        ratios = [row.ratio_most for row in rows if row.model == model and row.oversubscription == 1]
        assert ratios == sorted(ratios, reverse=True)
        assert ratios[0] == pytest.approx(testbed.PRINTED[model], rel=0.01)


def test_testbed__inversion_gives_back_the_printed_ratio() -> None:
    for model in testbed.MODELS:
        inversion = testbed.invert(model)
        for mbits, rate in inversion.server_bytes_per_second.items():
            rows = testbed.figure_13(rate, mbits=[mbits])
            row = next(r for r in rows if r.model == model and r.oversubscription == 1)
            assert row.ratio_most == pytest.approx(inversion.printed, rel=1e-6)


def test_testbed__hashing_collides_and_so_only_helps_psnet() -> None:
    balanced, _ = testbed.concurrency()
    mean, half_width = testbed.hashed_concurrency(range(200))
    assert mean - half_width > balanced == 6


def test_command__reproduces_the_committed_results(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["all", "--out", str(tmp_path), "--no-pictures"])
    assert result.exit_code == 0, result.output
    for name in ("figure6a.csv", "figure6b.csv", "figure7.csv", "figure13.csv"):
        assert _same(_cells(tmp_path / name), _cells(RESULTS / name)), name
    fresh = json.loads((tmp_path / "testbed.json").read_text())
    assert fresh["predicted_ratio"] == pytest.approx(
        json.loads((RESULTS / "testbed.json").read_text())["predicted_ratio"]
    )


def test_command__draws_every_figure(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["all", "--out", str(tmp_path), "--seeds", "10"])
    assert result.exit_code == 0, result.output
    for name in ("figure6a", "figure6b", "figure7", "figure13"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_growth_study__cuts_half_of_r_and_stays_connected() -> None:
    for age in study.growth_study(ports=4, up_to=9):
        assert (age.links_cut, age.connectivity) == (2, 4)
        assert age.diameter >= age.mean_hops >= 1


def test_fault_study__covers_every_kind_and_repair_helps_where_ports_are_free() -> None:
    found = {(name, s.kind): s for name, s in study.fault_study(failures=(1,), draws=20)}
    assert {kind for _, kind in found} == set(study.KINDS)
    assert found["quarter free", "tor"].repaired == (1.0, 1.0)
    assert found["full", "tor"].repaired[0] == found["full", "tor"].as_is[0] == pytest.approx(0.95)
    assert found["full", "server-link"].any_way == (1.0, 1.0)


def test_routing_study__planned_is_between_the_best_of_any_paths_and_doing_nothing() -> None:
    for gain in study.routing_study(seeds=range(3)):
        assert gain.any_path <= gain.with_extra_paths * (1 + 1e-6)
        assert gain.with_extra_paths <= gain.planned * (1 + 1e-6)
        assert gain.planned <= min(gain.one_path, gain.as_cabled) * (1 + 1e-6)
        assert gain.planned == pytest.approx(gain.bound, rel=1e-6)


def _cells(path: Path) -> list[list[float | str]]:
    with path.open(newline="") as file:
        return [[float(text) if _is_number(text) else text for text in row] for row in csv.reader(file)]


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace("e-", "", 1).isdigit()


def _same(fresh: list[list[float | str]], kept: list[list[float | str]]) -> bool:
    return len(fresh) == len(kept) and all(
        len(a) == len(b)
        and all(
            x == y if isinstance(x, str) or isinstance(y, str) else x == pytest.approx(y, rel=1e-4)
            for x, y in zip(a, b, strict=True)
        )
        for a, b in zip(fresh, kept, strict=True)
    )


def test_time__shows_the_testbed_s_three_to_one() -> None:
    arguments = ["--workers", "6", "--servers", "2", "--size", "528 MB", "--bandwidth", "1 Gbit/s"]
    output = CliRunner().invoke(app, ["time", *arguments]).output
    assert "PSNet: 4.224 s, limited by server NICs" in output
    assert "fat-tree, not oversubscribed: 12.67 s" in output


def test_survey__prints_shares(tmp_path: Path) -> None:
    file = tmp_path / "net.yaml"
    file.write_text(
        dump_cluster(psnet_cluster(build_psnet(Module(ecs_ports=12, tor_downlinks=4, tor_uplinks=4), modules=2)))
    )
    output = CliRunner().invoke(app, ["survey", str(file), "--kind", "tor", "-k", "1"]).output
    assert "6 all cases" in output
    assert "reached directly by the old circuits: 83.33% (83.33%)" in output
    assert CliRunner().invoke(app, ["survey", str(file), "--kind", "psu"]).exit_code == 2
