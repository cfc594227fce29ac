"""``paths=`` and MLT_PATHS: their meaning, errors, and the state of paths that ranks report."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks import assert_names, in_threads

import mlt
from mlt._shared.ports import free_port
from mlt.options.paths import PathOptions, resolve


def test_resolve__one_path_unless_told_otherwise() -> None:
    assert resolve(None, environ={}) == ()
    assert resolve(None, environ={"MLT_PATHS": ""}) == ()
    assert resolve(1, environ={"MLT_PATHS": "4"}) == (PathOptions(),)
    assert len(resolve(None, environ={"MLT_PATHS": "4"})) == 4


def test_resolve__reads_addresses_and_interfaces() -> None:
    expected = (PathOptions(interface="lo"), PathOptions(address="127.0.0.2"))
    assert resolve(["lo", "127.0.0.2"]) == expected
    assert resolve(None, environ={"MLT_PATHS": "lo, 127.0.0.2"}) == expected
    assert resolve({"paths": ["lo", {"address": "127.0.0.2"}]}) == expected


def test_resolve__reads_every_field_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "paths.yaml"
    file.write_text(
        """
paths:
  - {interface: lo, address: "::1", port: 9, flow_label: 0xABCDE, segments: ["fc00:1::1", "fc00:2::1"]}
  - segments_to: {1: ["fc00:3::1"], 0: []}
""",
        encoding="utf-8",
    )
    first, second = resolve(None, environ={"MLT_PATHS": str(file)}, ranks=2)
    assert first == PathOptions(
        interface="lo", address="::1", port=9, flow_label=0xABCDE, segments=("fc00:1::1", "fc00:2::1")
    )
    assert second.segments_to == {0: (), 1: ("fc00:3::1",)}
    native = second.to_native()
    assert native.segments_to == [(0, []), (1, ["fc00:3::1"])]
    (tmp_path / "number.yaml").write_text("3\n", encoding="utf-8")
    assert len(resolve(tmp_path / "number.yaml")) == 3


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (0, "paths: 0 paths"),
        (17, "17 paths"),
        ([], "0 paths"),
        (True, "True is not a path count"),
        (1.5, "1.5 is not a path count"),
        ("eth-none", "path 0: 'eth-none'.*lo"),
        (["lo", 3], "path 1: 3 is not an address"),
        ([{"segment": []}], "path 0: segment: unknown field"),
        ([{"address": "10.0.0"}], "path 0: '10.0.0' is not an IPv4"),
        ([{"address": 7}], "address is 7"),
        ([{"port": 65_536}], "port is 65536"),
        ([{"port": True}], "port is True"),
        ([{"flow_label": 2**20}], "flow_label is 1048576"),
        ([{"segments": "fc00::1"}], "segments is 'fc00::1'"),
        ([{"segments": ["10.0.0.1"]}], "segments: '10.0.0.1'"),
        ([{"segments": ["fc00::1"] * 127}], "127 addresses"),
        ([{"segments_to": []}], r"segments_to is \[\]"),
        ([{"segments_to": {"a": []}}], "a rank of segments_to is 'a'"),
        ([{}, {"segments_to": {2: []}}], "path 1: segments_to names rank 2"),
        ({"path": 2}, "the one field 'paths', not path"),
        ("none/such.yaml", "none/such.yaml cannot be read"),
    ],
)
def test_resolve__rejects_with_the_path_and_the_reason(paths: Any, words: str) -> None:
    with pytest.raises(mlt.ConfigError, match=words):
        resolve(paths, ranks=2)


def test_resolve__names_the_variable_and_the_file(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("paths: [{port: x}]\n", encoding="utf-8")
    for empty in (",", "lo,,eth0", "lo,"):
        with pytest.raises(mlt.ConfigError, match=r"MLT_PATHS: .* has an empty entry"):
            resolve(None, environ={"MLT_PATHS": empty})
    with pytest.raises(mlt.ConfigError, match=r"MLT_PATHS: .*bad\.yaml: path 0: port is 'x'"):
        resolve(None, environ={"MLT_PATHS": str(tmp_path / "bad.yaml")})
    (tmp_path / "broken.yaml").write_text("paths: [", encoding="utf-8")
    with pytest.raises(mlt.ConfigError, match="not YAML"):
        resolve(str(tmp_path / "broken.yaml"))


def plan(folder: Path, *jobs: str) -> str:
    """A plan file in which w0 has two routes to ps, by other spines, and w1 one."""

    def route(source: str, *segments: str) -> dict[str, Any]:
        return {"source": source, "destination": "ps", "path": [source, "leaf0", "ps"], "segments": list(segments)}

    tasks = [
        {"server": "ps", "rate": 1e9, "routes": [route("w0", "fd79::1"), route("w1", "fd79::2")]},
        {"server": "ps", "rate": 1e9, "routes": [route("w0", "fd79::2", "fd79::9"), route("w1", "fd79::2")]},
    ]
    entries = [{"job": name, "routing": {"method": "aro", "tasks": tasks}} for name in jobs]
    file = folder / "plan.json"
    file.write_text(json.dumps({"cluster": "lab", "cluster_digest": "0", "jobs": entries}), encoding="utf-8")
    return str(file)


def test_resolve__a_plan_alone_is_rejected_with_the_right_form(tmp_path: Path) -> None:
    with pytest.raises(mlt.ConfigError, match=r"MLT_PATHS: .*plan.json: a plan alone .*'plan: FILE'.*'hosts: "):
        resolve(None, environ={"MLT_PATHS": plan(tmp_path, "train")})


def test_resolve__takes_the_segment_lists_of_a_plan(tmp_path: Path) -> None:
    source = {"plan": plan(tmp_path, "train"), "hosts": ["w0", "w1", "ps"]}
    first, second, server = (resolve(source, ranks=3, rank=rank) for rank in range(3))
    assert [dict(one.segments_to) for one in first] == [{2: ("fd79::1",)}, {2: ("fd79::2", "fd79::9")}]
    # As many paths as the rank with the most routes has.
    assert [dict(one.segments_to) for one in second] == [{2: ("fd79::2",)}] * 2
    assert [dict(one.segments_to) for one in server] == [{}, {}]
    (tmp_path / "paths.yaml").write_text(json.dumps(source), encoding="utf-8")
    assert resolve(str(tmp_path / "paths.yaml"), ranks=3, rank=0) == first


def edited(file: str, **changes: Any) -> str:
    """The plan with these fields in every route."""
    content = json.loads(Path(file).read_text(encoding="utf-8"))
    for task in content["jobs"][0]["routing"]["tasks"]:
        for route in task["routes"]:
            route.update(changes)
    Path(file).write_text(json.dumps(content), encoding="utf-8")
    return file


def test_resolve__refuses_a_plan_that_a_running_job_cannot_follow(tmp_path: Path) -> None:
    hosts = ["w0", "w1", "ps"]
    merging = edited(plan(tmp_path, "train"), aggregated_at=[{"switch": "leaf0", "pipeline": 0}])
    with pytest.raises(mlt.ConfigError, match=r"merges 4 of its routes.*w0 to ps.*leaf0.*aggregates: false"):
        resolve({"plan": merging, "hosts": hosts}, ranks=3, rank=0)
    with pytest.raises(mlt.ConfigError, match="no SRv6 segment list"):
        resolve({"plan": edited(plan(tmp_path, "train"), segments=[]), "hosts": hosts}, ranks=3, rank=0)


@pytest.mark.parametrize(
    ("change", "rank", "words"),
    [
        ({"hosts": ["w0", "ps"]}, 0, "'w1', which is not among hosts"),
        ({"hosts": "w0"}, 0, "hosts is 'w0'"),
        ({"hosts": ["w0", "w0"]}, 0, "each once"),
        ({}, 3, "rank 3 has none"),
        ({"jobs": "train"}, 0, "a mapping with plan, hosts and job"),
        ({"job": "other"}, 0, "routes of 0 such jobs"),
        ({"plan": "no-such-plan.json"}, 0, "no-such-plan.json.*cannot be read"),
    ],
)
def test_resolve__rejects_a_plan_that_does_not_fit(
    tmp_path: Path, change: dict[str, Any], rank: int, words: str
) -> None:
    source = {"plan": plan(tmp_path, "train"), "hosts": ["w0", "w1", "ps"]} | change
    with pytest.raises(mlt.ConfigError, match=words):
        resolve(source, ranks=4, rank=rank)
    with pytest.raises(mlt.ConfigError, match="routes of 2 such jobs"):
        resolve({"plan": plan(tmp_path, "a", "b"), "hosts": ["w0", "w1", "ps"]}, rank=0)


def pair(work: Callable[[mlt.Context], None], paths: tuple[Any, Any], **options: Any) -> list[Exception]:
    """Two contexts with their paths; what either raised."""
    errors: list[Exception] = []
    port = free_port()

    def one(rank: int) -> None:
        try:
            with mlt.Context(
                rank,
                2,
                master_addr="127.0.0.1",
                rendezvous_port=port,
                paths=paths[rank],
                **({"connect_timeout": 20} | options),
            ) as context:
                work(context)
        except Exception as error:
            errors.append(error)

    in_threads(one, [(0,), (1,)])
    return errors


def exchange(context: mlt.Context, size: int = 1 << 20) -> None:
    """A tensor to rank 1 and one byte back."""
    tensor, reply = np.full(size, 3, np.uint8), np.zeros(1, np.uint8)
    if context.rank == 0:
        context.wait(context.post_send(tensor, to=1))
        context.wait(context.post_recv(reply, from_=1))
    else:
        tensor[:] = 0
        context.wait(context.post_recv(tensor, from_=0))
        assert (tensor == 3).all()
        context.wait(context.post_send(reply, to=0))


@pytest.mark.parametrize("faults", [mlt.Faults(), mlt.Faults(drop=0.02, seed=5)])
def test_context__sprays_over_all_its_paths_and_reports_their_state(faults: mlt.Faults) -> None:
    found: list[tuple[mlt.options.paths.PathStatus, ...]] = []
    counted: list[dict[str, int]] = []

    def work(context: mlt.Context) -> None:
        for _ in range(8):  # of the last packets the peer's reports may still be on their way
            exchange(context)
        if context.rank == 0:
            found.append(context.paths(1))
            counted.append(context.counters())
            with pytest.raises(mlt.UnknownPeerError):
                context.paths(0)

    assert pair(work, ([{}, {}, "127.0.0.2", "lo"],) * 2, host="127.0.0.1", faults=faults) == []
    (paths,) = found
    assert [one.path for one in paths] == [0, 1, 2, 3]
    assert paths[2].local.startswith("127.0.0.2:")
    assert len({one.local for one in paths}) == 4
    assert sum(one.share for one in paths) == pytest.approx(1)
    for one in paths:
        assert one.packets_sent >= one.packets_reported > 100
        # The counters were asked later: an answer or a probe may have left in between.
        assert 0 < one.runs_sent <= counted[0][f"udp_path{one.path}_runs_sent"] <= one.runs_sent + 50
        # Measurements start anew when control takes another path, so that one may be missing.
        assert one.rtt_us is None or one.rtt_us > 0
        assert (one.silent, one.runs_failed) == (False, 0)
        assert isinstance(one.resting, bool)
    # A path that carried little may have lost nothing.
    assert any(one.loss > 0 for one in paths) == (faults.drop > 0)
    assert sum(counted[0][f"udp_path{one.path}_runs_sent"] for one in paths) == counted[0]["udp_runs_sent"]


def test_context__one_path_is_the_default_and_has_a_status_too() -> None:
    found: list[tuple[mlt.options.paths.PathStatus, ...]] = []

    def work(context: mlt.Context) -> None:
        exchange(context)
        found.append(context.paths(1 - context.rank))

    assert pair(work, (None, 1)) == []
    assert [[one.share for one in paths] for paths in found] == [[1.0], [1.0]]


@pytest.mark.parametrize("paths", [1, 3])
def test_context__round_trips_are_none_before_data_is_sent_and_at_a_rank_that_only_receives(paths: int) -> None:
    before: list[tuple[mlt.options.paths.PathStatus, ...]] = []
    after: list[tuple[mlt.options.paths.PathStatus, ...]] = []

    def work(context: mlt.Context) -> None:
        before.append(context.paths(1 - context.rank))
        if context.rank == 0:
            context.wait(context.post_send(np.ones(1 << 20, np.uint8), to=1))
        else:
            context.wait(context.post_recv(np.empty(1 << 20, np.uint8), from_=0))
            after.append(context.paths(0))

    assert pair(work, (paths, paths)) == []
    assert [[one.rtt_us for one in status] for status in before] == [[None] * paths] * 2
    assert [[one.rtt_us for one in status] for status in after] == [[None] * paths]


def test_context__rejects_ranks_with_different_numbers_of_paths() -> None:
    errors = pair(exchange, (2, 3), connect_timeout=4)
    assert len(errors) == 2
    mismatch = next(error for error in errors if isinstance(error, mlt.PeerMismatchError))
    assert_names(str(mismatch), "paths", "rank 0 has 2", "rank 1 has 3")
    assert "MLT_PATHS" in str(mismatch)


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        ([{}, {"address": "::1"}], "path 1: host '::1'"),
        ([{"flow_label": 5}], "flow label 5 for 127.0.0.1"),
        ([{}, {"segments": ["fc00::1"]}], "path 1: a segment list"),
        (["192.0.2.1"], "192.0.2.1"),
    ],
)
def test_context__rejects_options_that_the_system_or_ip_version_lacks(paths: Any, words: str) -> None:
    with pytest.raises(mlt.MltError, match=words):
        mlt.Context(0, 1, master_addr="127.0.0.1", rendezvous_port=free_port(), host="127.0.0.1", paths=paths)


def test_context__busy_polling_works_or_is_rejected_and_the_error_names_a_fix() -> None:
    privileged = os.geteuid() == 0
    refused = contextlib.nullcontext() if privileged else pytest.raises(mlt.MltError, match="busy_poll_us")
    with (
        refused,
        mlt.Context(0, 1, master_addr="127.0.0.1", rendezvous_port=free_port(), busy_poll_us=200, paths=2),
    ):
        pass
    with pytest.raises(mlt.ConfigError, match="busy_poll_us is -1"):
        mlt.Context(0, 1, master_addr="127.0.0.1", rendezvous_port=free_port(), busy_poll_us=-1)
