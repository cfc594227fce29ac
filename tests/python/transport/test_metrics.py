"""``mlt.metrics``: what Prometheus and OpenTelemetry get of a context's statistics."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from checks import assert_names, until
from transport_jobs import local_job

import mlt
from mlt import metrics

prometheus_client = pytest.importorskip("prometheus_client", reason="needs the extra metrics")
parser = pytest.importorskip("prometheus_client.parser")
# An interpreter that finds every package but one.
WITHOUT = """
import sys
from importlib.machinery import PathFinder
class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] == {hidden!r} else PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
import mlt
from mlt import metrics
context = mlt.Context(0, 1)
try:
    metrics.{call}
except ModuleNotFoundError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def job() -> Iterator[list[mlt.Context]]:
    with local_job(2, job="training") as contexts:
        yield contexts


def reduce(contexts: list[mlt.Context], times: int) -> None:
    for _ in range(times):
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda one: one.all_reduce(np.ones(1_000, np.float32)), contexts))


def scraped(server: metrics.MetricsServer) -> dict[str, Any]:
    """Family -> its samples, as Prometheus reads the page."""
    with urlopen(f"http://127.0.0.1:{server.port}/metrics") as page:
        text = page.read().decode()
    return {family.name: family for family in parser.text_string_to_metric_families(text)}


def test_serve__has_every_counter_and_the_operations(job: list[mlt.Context]) -> None:
    with metrics.serve(job[0], port=0) as server:
        reduce(job, 3)
        found = scraped(server)
        counters = job[0].counters()
        labels = {"mlt_job": "training", "rank": "0"}
        (sent,) = found["mlt_data_sent_bytes"].samples
        assert (sent.name, sent.labels) == ("mlt_data_sent_bytes_total", labels)
        assert sent.value > 0
        assert found["mlt_data_sent_bytes"].type == "counter"
        assert found["mlt_shm_peers"].type == "gauge"
        samples = sum(len(family.samples) for name, family in found.items() if name.startswith("mlt_"))
        assert samples > len(counters)
        reasons = {one.labels["reason"] for one in found["mlt_dropped_datagrams"].samples}
        assert reasons == {name.removeprefix("drop_") for name in counters if name.startswith("drop_")}
        assert len(found["mlt_wrong_state_events"].samples) == sum(name.startswith("wrong_state_") for name in counters)
        (ended,) = [one for one in found["mlt_operations"].samples if one.labels["kind"] == "all_reduce"]
        assert (ended.labels["status"], ended.value) == ("complete", 3)
        (size,) = found["mlt_operation_bytes"].samples
        assert size.value == 12_000
        (peer,) = found["mlt_peer_up"].samples
        assert (peer.labels["peer"], peer.value) == ("1", 1)


def test_serve__the_histogram_is_cumulative_and_ends_with_the_count(job: list[mlt.Context]) -> None:
    with metrics.serve(job[0], port=0) as server:
        reduce(job, 2)
        samples = scraped(server)["mlt_operation_duration_seconds"].samples
    expected = job[0].stats().operations["all_reduce"]
    buckets = [one for one in samples if one.name.endswith("_bucket")]
    values = [one.value for one in buckets]
    assert values == sorted(values)
    assert buckets[-1].labels["le"] == "+Inf"
    assert values[-1] == sum(count for _, count in expected.histogram) == expected.count
    bounds = [float(one.labels["le"]) for one in buckets]
    assert all(after == 2 * before for before, after in pairwise(bounds[:-1]))
    (total,) = [one.value for one in samples if one.name.endswith("_sum")]
    assert total == pytest.approx(expected.seconds)


def test_serve__without_peers(job: list[mlt.Context]) -> None:
    with metrics.serve(job[0], port=0, peers=False) as server:
        assert not [name for name in scraped(server) if name.startswith(("mlt_peer_", "mlt_path_"))]


def test_serve__a_registry_has_the_metrics_of_one_context_at_a_time() -> None:
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.Counter("steps", "Steps of the program.", registry=registry).inc()
    with local_job(2) as contexts:
        for context in contexts:
            with metrics.serve(context, port=0, registry=registry) as server:
                (workers,) = scraped(server)["mlt_workers"].samples
                assert workers.labels["rank"] == str(context.rank)
                assert scraped(server)["steps"].samples[0].value == 1
                with pytest.raises(mlt.ConfigError, match="registry has the metrics of another context"):
                    metrics.serve(contexts[0], port=0, registry=registry)
                server.close()


def test_serve__goes_on_after_the_end_of_the_context() -> None:
    with local_job(2) as contexts, metrics.serve(contexts[1], port=0) as server:
        contexts[1].close()
        until(lambda: scraped(server)["mlt_peer_up"].samples[0].value == 0)


def test_serve__listens_on_loopback_until_it_is_closed(job: list[mlt.Context]) -> None:
    server = metrics.serve(job[0], port=0)
    port = server.port
    assert server._server.server_address[0] == "127.0.0.1"
    server.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_serve__a_port_in_use_or_out_of_range_is_named(job: list[mlt.Context]) -> None:
    registry = prometheus_client.CollectorRegistry()
    with metrics.serve(job[0], port=0) as server, pytest.raises(mlt.PortInUseError) as caught:
        metrics.serve(job[0], port=server.port, registry=registry)
    assert_names(str(caught.value), "rank 0", str(server.port), "another port")
    assert "mlt_workers" not in prometheus_client.generate_latest(registry).decode()
    with pytest.raises(mlt.ConfigError, match="port is 70000"):
        metrics.serve(job[0], port=70_000)


def test_names__end_in_units_and_are_unique(job: list[mlt.Context]) -> None:
    job[0].stats()
    found = list(metrics.metrics_of(job[0].stats(), peers=True))
    names = [one.prometheus_name for one in found]
    assert len(names) == len(set(names)) == len({one.name for one in found})
    assert all(name.endswith("_bytes") for name in names if "bytes" in name and "per_second" not in name)
    assert all(len({tuple(labels) for labels, _ in one.series}) <= 1 for one in found)


def test_observe__has_the_same_with_units(job: list[mlt.Context]) -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.metrics", reason="needs the extra metrics")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    reader = export.InMemoryMetricReader()
    metrics.observe(job[1], provider=sdk.MeterProvider([reader]))
    reduce(job, 2)

    def collected() -> dict[str, Any]:
        (scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
        return {one.name: one for one in scope.metrics}

    until(lambda: "mlt.operations" in collected())
    found = collected()
    (sent,) = found["mlt.data_sent"].data.data_points
    assert found["mlt.data_sent"].unit == "By"
    assert found["mlt.data_sent"].data.is_monotonic
    assert (sent.attributes, sent.value) == (
        {"mlt_job": "training", "rank": "1"},
        job[1].counters()["data_bytes_sent"],
    )
    (count,) = found["mlt.operations"].data.data_points
    assert (count.attributes["kind"], count.value) == ("all_reduce", 2)
    assert found["mlt.operation_duration"].data.data_points[0].value > 0
    assert found["mlt.peer_up"].data.data_points[0].value == 1


@pytest.mark.parametrize(
    ("hidden", "call", "package"),
    [
        ("prometheus_client", "serve(context, port=0)", "prometheus-client"),
        ("opentelemetry", "observe(context)", "opentelemetry-sdk"),
    ],
)
def test_missing_package__is_named_with_the_command_that_installs_it(hidden: str, call: str, package: str) -> None:
    program = WITHOUT.format(hidden=hidden, call=call)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert_names(done.stdout, f"needs {package}, which is not installed", "pip install", "# extra metrics")


def test_import__of_mlt_and_its_metrics_loads_no_exporter() -> None:
    program = "import sys, mlt.metrics, mlt; mlt.Context; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert not {"prometheus_client", "opentelemetry"} & set(done.stdout.split())
