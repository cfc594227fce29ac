"""The van of ps-lite: workers, servers and a scheduler as processes over loopback (make test-van)."""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlt._shared.ports import free_port

# MLT_VAN_BUILD: another build, such as one over another tree of ps-lite.
BUILD = (
    Path(os.environ.get("MLT_VAN_BUILD", Path(__file__).parents[3] / "build" / "default")) / "tests/plugins/byteps/van"
)
PROGRAM = BUILD / "van_program"
TIME_S = 120
SOON_S = 30  # failures are reported within seconds; the rest is for a loaded host
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="make test-van builds the van of ps-lite")


class Cluster:
    """The processes of a job of ps-lite."""

    def __init__(self, folder: Path, workers: int, servers: int, **environment: str) -> None:
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("MLT_", "DMLC_"))}
        self.environment |= {
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(free_port()),
            "DMLC_NODE_HOST": "127.0.0.1",
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_NUM_SERVER": str(servers),
            "DMLC_PS_VAN_TYPE": "mlt",
            "MLT_JOB_SECRET": secrets.token_hex(16),
            **environment,
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, role: str, *command: str, **environment: str) -> None:
        log = (self.folder / f"{name}.log").open("wb")
        self.processes[name] = subprocess.Popen(
            command,
            env=self.environment | environment | {"DMLC_ROLE": role},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        log.close()

    def start_all(self, *command: str) -> None:
        self.start("scheduler", "scheduler", *command)
        for i in range(int(self.environment["DMLC_NUM_SERVER"])):
            self.start(f"server{i}", "server", *command)
        for i in range(int(self.environment["DMLC_NUM_WORKER"])):
            self.start(f"worker{i}", "worker", *command)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def logs(self) -> str:
        return "\n".join(f"==== {name}\n{self.log(name)[-3000:]}" for name in self.processes)

    def wait(self, name: str, seconds: float) -> int:
        try:
            return self.processes[name].wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{name} has not ended after {seconds} s\n{self.logs()}")

    def wait_all(self) -> None:
        for name in self.processes:
            assert self.wait(name, TIME_S) == 0, f"{name}\n{self.logs()}"

    def end(self) -> None:
        for one in self.processes.values():
            one.kill()
            one.wait()


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[list[Cluster]]:
    made: list[Cluster] = []
    yield made
    for one in made:
        one.end()


def until(condition: Path, cluster: Cluster) -> None:
    end = time.monotonic() + TIME_S
    while not condition.exists():
        assert time.monotonic() < end, cluster.logs()
        time.sleep(0.05)


def exchange(clusters: list[Cluster], folder: Path, workers: int, servers: int, **environment: str) -> Cluster:
    cluster = Cluster(folder, workers, servers, **environment)
    clusters.append(cluster)
    cluster.start_all(str(PROGRAM), "exchange")
    cluster.wait_all()
    for i in range(workers):
        assert "exchanged" in cluster.log(f"worker{i}")
    return cluster


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 1), (2, 2)])
def test_exchange__sums_every_push_of_all_workers(
    clusters: list[Cluster], tmp_path: Path, workers: int, servers: int
) -> None:
    exchange(clusters, tmp_path, workers, servers)


def test_exchange__writes_pulls_in_place_if_selected_by_bytedances_variable(
    clusters: list[Cluster], tmp_path: Path
) -> None:
    exchange(clusters, tmp_path, 2, 1, DMLC_ENABLE_RDMA="mlt", DMLC_PS_VAN_TYPE="mlt")


def test_exchange__delivers_everything_once_with_packet_loss(clusters: list[Cluster], tmp_path: Path) -> None:
    exchange(clusters, tmp_path, 2, 2, MLT_VAN_FAULTS="drop=1%,reorder=1%,duplicate=1%", DMLC_ENABLE_RDMA="mlt")


def test_registered__pushes_arrive_in_the_buffer_of_their_worker_and_key(
    clusters: list[Cluster], tmp_path: Path
) -> None:
    cluster = Cluster(tmp_path, 2, 1)
    clusters.append(cluster)
    cluster.start_all(str(PROGRAM), "registered")
    cluster.wait_all()
    printed = cluster.log("server0").splitlines()
    assert (printed.count("in its buffer"), printed.count("elsewhere")) == (8, 4)  # 2 workers, 2 rounds


@pytest.mark.parametrize("faults", ["drop=2%", ""])
def test_loss_bound__pushes_lose_up_to_it_and_pulls_nothing(
    clusters: list[Cluster], tmp_path: Path, faults: str
) -> None:
    cluster = Cluster(
        tmp_path, 2, 1, MLT_VAN_FAULTS=faults, MLT_VAN_LOSS_BOUND="5%", MLT_DATAPATH="udp", DMLC_ENABLE_RDMA="mlt"
    )
    clusters.append(cluster)
    cluster.start_all(str(PROGRAM), "bounded")
    cluster.wait_all()
    # 20 pushes of each of 2 workers. Both see the same sums: a pull loses nothing. A first push is exact.
    first, second = (
        re.findall(r"key (\d): ([\d.]+) arrived, at least (\d+) pushes", cluster.log(f"worker{i}")) for i in range(2)
    )
    assert first == second
    (lossy, exact) = first
    assert exact == ("1", "1", "40")
    assert float(lossy[1]) >= 0.95
    assert int(lossy[2]) >= 2
    assert (float(lossy[1]) < 1) == bool(faults)
    lost, pushed = re.findall(r"mlt van: (\d+) of (\d+) bytes", cluster.log("server0"))[0]
    assert int(pushed) == 2 * 19 * 500_000 * 4
    assert int(lost) == pytest.approx((1 - float(lossy[1])) * 40 * 500_000 * 4, rel=0.01)


def test_loss_bound__of_everything_is_refused(clusters: list[Cluster], tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1, 1, MLT_VAN_LOSS_BOUND="100%")
    clusters.append(cluster)
    cluster.start("scheduler", "scheduler", str(PROGRAM))
    assert cluster.wait("scheduler", SOON_S) != 0
    assert "MLT_VAN_LOSS_BOUND is '100%'" in cluster.log("scheduler")


def test_end__the_last_message_of_a_node_arrives_though_it_leaves(clusters: list[Cluster], tmp_path: Path) -> None:
    for _ in range(4):
        cluster = Cluster(tmp_path, 4, 4)
        clusters.append(cluster)
        cluster.start_all(str(PROGRAM), "nothing")
        cluster.wait_all()


def test_failure__of_a_server_ends_every_process_within_seconds(clusters: list[Cluster], tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2, 2)
    clusters.append(cluster)
    cluster.start_all(str(PROGRAM), "loop", str(tmp_path / "pushed"))
    until(tmp_path / "pushed", cluster)
    cluster.processes["server0"].kill()
    for name in ("worker0", "worker1", "scheduler"):
        assert cluster.wait(name, SOON_S) != 0, cluster.logs()
    text = cluster.log("worker0") + cluster.log("worker1")
    assert re.search(r"mlt van: node \d+ failed", text), cluster.logs()


def test_failure__of_the_scheduler_ends_every_process_within_seconds(clusters: list[Cluster], tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1, 1)
    clusters.append(cluster)
    cluster.start_all(str(PROGRAM), "loop", str(tmp_path / "pushed"))
    until(tmp_path / "pushed", cluster)
    cluster.processes["scheduler"].kill()
    for name in ("worker0", "server0"):
        assert cluster.wait(name, SOON_S) != 0, cluster.logs()
    assert "the scheduler failed" in cluster.log("worker0") + cluster.log("server0")


def test_recovery__a_new_process_takes_the_id_of_a_killed_server(clusters: list[Cluster], tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1, 1, PS_HEARTBEAT_INTERVAL="1", PS_HEARTBEAT_TIMEOUT="3", PS_VERBOSE="1")
    clusters.append(cluster)
    command = (str(PROGRAM), "recover", str(tmp_path / "pushed"), str(tmp_path / "go"))
    cluster.start_all(*command)
    until(tmp_path / "pushed", cluster)
    cluster.processes["server0"].kill()
    cluster.processes.pop("server0").wait()
    time.sleep(5)  # ps-lite takes a node for dead once its heartbeats are older than PS_HEARTBEAT_TIMEOUT
    cluster.start("server0-again", "server", *command, MLT_TEST_RECOVERS="1")
    end = time.monotonic() + TIME_S
    while "is connected to others" not in cluster.log("server0-again"):
        assert time.monotonic() < end, cluster.logs()
        time.sleep(0.05)
    time.sleep(1)  # the scheduler tells the worker at the same time; nothing shows when the worker has it
    (tmp_path / "go").touch()
    cluster.wait_all()
    assert "it is waited for until another process takes its id" in cluster.log("worker0")
    assert "after recovery 1" in cluster.log("worker0")


def test_recovery__a_server_that_nobody_replaces_ends_the_job(clusters: list[Cluster], tmp_path: Path) -> None:
    cluster = Cluster(
        tmp_path, 1, 1, PS_HEARTBEAT_INTERVAL="1", PS_HEARTBEAT_TIMEOUT="3", MLT_VAN_RECOVERY_TIMEOUT="1s"
    )
    clusters.append(cluster)
    cluster.start_all(str(PROGRAM), "loop", str(tmp_path / "pushed"))
    until(tmp_path / "pushed", cluster)
    cluster.processes["server0"].kill()
    assert cluster.wait("worker0", SOON_S) != 0
    assert "no process has replaced it" in cluster.log("worker0")


def test_settings__a_secret_that_differs_is_an_error(clusters: list[Cluster], tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1, 1, MLT_CONNECT_TIMEOUT="5s")
    clusters.append(cluster)
    cluster.start("scheduler", "scheduler", str(PROGRAM))
    cluster.start("worker0", "worker", str(PROGRAM), "exchange", MLT_JOB_SECRET=secrets.token_hex(16))
    assert cluster.wait("worker0", SOON_S) != 0
    assert "mlt van" in cluster.log("worker0")
    assert "secret" in cluster.log("worker0")


def test_port__that_is_no_nodes_is_ignored(clusters: list[Cluster], tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1, 1)
    clusters.append(cluster)
    cluster.start("scheduler", "scheduler", str(PROGRAM))
    end = time.monotonic() + TIME_S
    scheduler = ("127.0.0.1", int(cluster.environment["DMLC_PS_ROOT_PORT"]))
    while True:
        try:
            with socket.create_connection(scheduler, 1) as client:
                client.sendall(b"GET / HTTP/1.1\r\n\r\n")
                break
        except OSError:
            assert time.monotonic() < end, cluster.logs()
            time.sleep(0.05)
    cluster.start("server0", "server", str(PROGRAM), "exchange")
    cluster.start("worker0", "worker", str(PROGRAM), "exchange")
    cluster.wait_all()


@pytest.mark.skipif(not (BUILD / "ps_lite_test_kv_app").exists(), reason="a test program of dmlc's ps-lite")
@pytest.mark.parametrize("name", ["test_connection", "test_simple_app", "test_kv_app", "test_kv_app_benchmark"])
def test_ps_lite__its_own_test_program_succeeds(clusters: list[Cluster], tmp_path: Path, name: str) -> None:
    cluster = Cluster(tmp_path, 2, 2)
    clusters.append(cluster)
    cluster.start_all(str(BUILD / f"ps_lite_{name}"))
    cluster.wait_all()


@pytest.mark.skipif(not (BUILD / "ps_lite_test_kv_app").exists(), reason="a test program of dmlc's ps-lite")
def test_ps_lite__two_workers_of_one_process_succeed(clusters: list[Cluster], tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2, 2)
    clusters.append(cluster)
    program = str(BUILD / "ps_lite_test_kv_app_multi_workers")
    for name in ("scheduler", "server0", "server1", "worker"):
        role = name.rstrip("01")
        cluster.start(name, role, program, role)
    cluster.wait_all()


@pytest.mark.skipif(not (BUILD / "ps_lite_test_benchmark").exists(), reason="a test program of BytePS's ps-lite")
def test_ps_lite__its_own_benchmark_succeeds(clusters: list[Cluster], tmp_path: Path) -> None:
    cluster = Cluster(
        tmp_path, 2, 1, DMLC_ENABLE_RDMA="mlt", NUM_KEY_PER_SERVER="4", TOTAL_DURATION="50", LOG_DURATION="10"
    )
    clusters.append(cluster)
    cluster.start_all(str(BUILD / "ps_lite_test_benchmark"), "262144", "50", "1")
    cluster.wait_all()
