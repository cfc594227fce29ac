"""Exporters of ``Context.stats()``: Prometheus (``serve``, ``PrometheusCollector``) and OpenTelemetry (``observe``).

Their packages are the extra ``metrics``; importing this module loads neither. Every metric has the labels ``mlt_job``
and ``rank``. Names end in a unit of Prometheus's conventions: seconds, bytes, ratios, ``_total``. docs/monitoring.md
has the list.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlt._shared.extras import require
from mlt.errors import ConfigError, PortInUseError
from mlt.options.paths import PathStatus
from mlt.stats import ContextStats, OperationStats, PeerStats

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric as PrometheusMetric

    from mlt.context import Context

# Counters of the context that are states.
_STATES = frozenset(("shm_peers", "vma_zero_copy_available", "xdp_device_queues", "xdp_native", "xdp_zero_copy"))
# First words of many counters -> the metric and the label that have them all.
_FAMILIES = {"drop_": ("dropped_datagrams", "reason"), "wrong_state_": ("wrong_state_events", "event")}
# Upper bounds of the exported histogram: a microsecond to 18 minutes, each twice the one before.
_BITS = range(10, 41)
# Units in names of Prometheus -> those of OpenTelemetry.
_UNITS = {"": "", "bytes": "By", "bytes_per_second": "By/s", "ratio": "1", "seconds": "s"}
# OpenTelemetry calls back for each metric: those of one collection share one snapshot, at most this old.
_SNAPSHOT_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of both exporters: ``name`` without prefix and unit, and (labels, value) of each series.

    >>> Metric("data_sent", "bytes", True, "Payload.", (({}, 12),)).prometheus_name
    'mlt_data_sent_bytes'
    """

    name: str
    unit: str
    is_counter: bool
    text: str
    series: tuple[tuple[Mapping[str, str], float], ...]

    @property
    def prometheus_name(self) -> str:
        """The name with prefix and unit, without ``_total``."""
        return f"mlt_{self.name}_{self.unit}" if self.unit else f"mlt_{self.name}"


class PrometheusCollector:
    """A collector of ``prometheus_client`` for one context: ``registry.register(PrometheusCollector(ctx))``. A registry
    takes one of them, because a page has each metric once.

    ``peers=False`` leaves out the metrics of peers and paths, which are one series per rank and peer each. Starts the
    recording of operations. Raises ModuleNotFoundError, with the command that installs it, if prometheus_client is
    missing.

    >>> from prometheus_client import CollectorRegistry
    >>> registry = CollectorRegistry()
    >>> registry.register(PrometheusCollector(rank_0))
    >>> registry.get_sample_value("mlt_peer_up", {"mlt_job": "default", "rank": "0", "peer": "1"})
    1.0
    """

    def __init__(self, context: Context, *, peers: bool = True) -> None:
        _require_prometheus()
        self._context = context
        self._has_peers = peers
        context.stats()

    def describe(self) -> Iterable[PrometheusMetric]:
        """A metric by which a registry knows that it has such a collector."""
        from prometheus_client.core import GaugeMetricFamily

        return (GaugeMetricFamily("mlt_workers", ""),)

    def collect(self) -> Iterator[PrometheusMetric]:
        """The metrics now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        stats = self._context.stats()
        own = _own_labels(stats)
        for one in metrics_of(stats, peers=self._has_peers):
            names = [*own, *(one.series[0][0] if one.series else ())]
            family = (CounterMetricFamily if one.is_counter else GaugeMetricFamily)(
                one.prometheus_name, one.text, labels=names
            )
            for labels, value in one.series:
                family.add_metric([*own.values(), *labels.values()], value)
            yield family
        times = HistogramMetricFamily(
            "mlt_operation_duration_seconds", "From post to completion, of operations that did not fail.",
            labels=[*own, "kind"],
        )  # fmt: skip
        for kind, operations in stats.operations.items():
            times.add_metric([*own.values(), kind], cumulative(operations), operations.seconds)
        yield times


class MetricsServer:
    """The HTTP server of ``serve``; a context manager that closes it."""

    def __init__(self, server: Any, thread: threading.Thread, unregister: Callable[[], None]) -> None:
        self._server = server
        self._thread = thread
        self._unregister = unregister
        self._is_closed = False

    @property
    def port(self) -> int:
        """The TCP port that it listens on."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop to serve, close the port, and take the collector out of its registry. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._unregister()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(
    context: Context,
    *,
    port: int,
    host: str = "127.0.0.1",
    peers: bool = True,
    registry: CollectorRegistry | None = None,
) -> MetricsServer:
    """Serve the metrics of ``context`` to Prometheus at ``http://host:port/metrics``, on a thread of its own.

    ``port``: 0 to 65535, 0 for a free one; every rank of a host needs its own, such as ``9500 + ctx.rank``. ``host``:
    the address to listen on. There is no encryption and no login: give another than loopback in a trusted network only.
    ``peers``: as of ``PrometheusCollector``. ``registry``: one whose other metrics to serve as well, with no collector
    of another context (None: a registry of its own). The server outlives the context, whose last metrics it serves,
    until it is closed or the process ends.

    Raises ModuleNotFoundError if prometheus_client is missing, ConfigError, PortInUseError.

    >>> from urllib.request import urlopen
    >>> with serve(rank_1, port=0) as server:
    ...     text = urlopen(f"http://127.0.0.1:{server.port}/metrics").read().decode()
    >>> [line for line in text.splitlines() if line.startswith("mlt_workers")]
    ['mlt_workers{mlt_job="default",rank="1"} 2.0']
    """
    if not 0 <= port <= 65_535:
        raise ConfigError(f"port is {port}; give 0 (a free one) to 65535")
    collector: Any = PrometheusCollector(context, peers=peers)
    from prometheus_client import CollectorRegistry, start_http_server

    chosen = CollectorRegistry() if registry is None else registry
    try:
        chosen.register(collector)
    except ValueError as error:
        raise ConfigError(f"rank {context.rank}: registry has the metrics of another context: {error}") from None
    try:
        started = start_http_server(port, host, chosen)
    except OSError as error:
        chosen.unregister(collector)
        raise PortInUseError(
            f"rank {context.rank}: metrics cannot be served at {host} port {port}: {error.strerror or error}; give "
            "every rank of a host another port"
        ) from None
    return MetricsServer(*started, lambda: chosen.unregister(collector))


def _require_prometheus() -> None:
    require("prometheus_client", "mlt.metrics", "prometheus-client", "metrics", "prometheus-client")


def observe(context: Context, *, peers: bool = True, provider: MeterProvider | None = None) -> None:
    """Create observable counters and gauges of ``context`` with OpenTelemetry, which collects them from now on.

    ``provider``: a meter provider (None: the global one, that of ``opentelemetry.metrics.set_meter_provider``).
    ``peers``: as of ``PrometheusCollector``. The metrics are those of Prometheus, with a dot and units for
    OpenTelemetry: ``mlt.data_sent`` in ``By``; instead of the histogram, ``mlt.operation_duration`` is the sum in
    ``s``. Call it once for a context.

    Raises ModuleNotFoundError, with the command that installs it, if OpenTelemetry is missing.

    >>> from opentelemetry.sdk.metrics import MeterProvider
    >>> from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    >>> reader = InMemoryMetricReader()
    >>> observe(rank_0, provider=MeterProvider([reader]))
    >>> (scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
    >>> [one.unit for one in scope.metrics if one.name == "mlt.data_sent"]
    ['By']
    """
    require("opentelemetry", "mlt.metrics.observe", "opentelemetry-sdk", "metrics", "opentelemetry-sdk")
    from opentelemetry.metrics import get_meter_provider

    meter = (provider or get_meter_provider()).get_meter("mlt")
    snapshot = _Snapshot(context, peers=peers)
    for name, one in snapshot.metrics().items():
        create = meter.create_observable_counter if one.is_counter else meter.create_observable_gauge
        create(f"mlt.{name}", [_callback(snapshot, name)], _UNITS[one.unit], one.text)


def _callback(snapshot: _Snapshot, name: str) -> Callable[[CallbackOptions], list[Observation]]:
    from opentelemetry.metrics import Observation

    def observations(_: CallbackOptions) -> list[Observation]:
        one = snapshot.metrics().get(name)
        series = () if one is None else one.series
        return [Observation(value, {**snapshot.labels, **labels}) for labels, value in series]

    return observations


class _Snapshot:
    """The metrics of a context by name, read again if they are older than ``_SNAPSHOT_SECONDS``."""

    def __init__(self, context: Context, *, peers: bool) -> None:
        self._context = context
        self._has_peers = peers
        self._lock = threading.Lock()
        self._read = float("-inf")
        self._metrics: dict[str, Metric] = {}
        self.labels = _own_labels(context.stats())

    def metrics(self) -> dict[str, Metric]:
        with self._lock:
            if time.monotonic() - self._read > _SNAPSHOT_SECONDS:
                stats = self._context.stats()
                seconds = tuple(({"kind": kind}, one.seconds) for kind, one in stats.operations.items())
                found = [
                    *metrics_of(stats, peers=self._has_peers),
                    Metric("operation_duration", "seconds", True, "From post to completion, summed.", seconds),
                ]
                self._metrics = {one.name: one for one in found}
                self._read = time.monotonic()
            return self._metrics


def _own_labels(stats: ContextStats) -> dict[str, str]:
    return {"mlt_job": stats.job, "rank": str(stats.rank)}


def metrics_of(stats: ContextStats, *, peers: bool) -> Iterator[Metric]:
    """All metrics but the histogram; the labels of a metric are the same in each series, and in one order.

    >>> counters = {"data_bytes_sent": 5, "drop_bad_cookie": 1, "shm_peers": 2}
    >>> stats = ContextStats(rank=0, world_size=2, services=0, job="a", recorded_seconds=1, counters=counters,
    ...                      operations={}, peers=())
    >>> [one.prometheus_name for one in metrics_of(stats, peers=False)][2:4]
    ['mlt_data_sent_bytes', 'mlt_shm_peers']
    """
    yield Metric("workers", "", False, "Workers of the job.", (({}, stats.world_size),))
    yield Metric("services", "", False, "Summation services of the job.", (({}, stats.services),))
    families: dict[str, list[tuple[Mapping[str, str], float]]] = {start: [] for start in _FAMILIES}
    for counter, value in stats.counters.items():
        start = next((one for one in families if counter.startswith(one)), None)
        if start is not None:
            families[start].append(({_FAMILIES[start][1]: counter.removeprefix(start)}, value))
            continue
        words = counter.split("_")
        unit = "bytes" if "bytes" in words else ""
        name = "_".join(word for word in words if word != unit)
        yield Metric(name, unit, counter not in _STATES, f"Counter {counter} of the context.", (({}, value),))
    for start, series in families.items():
        yield Metric(_FAMILIES[start][0], "", True, f"Counters {start}* of the context.", tuple(series))
    yield from _operations(stats)
    if peers:
        yield from _peers(stats.peers)


def _operations(stats: ContextStats) -> Iterator[Metric]:
    found = stats.operations.items()
    statuses = [
        ({"kind": kind, "status": status}, count) for kind, one in found for status, count in one.statuses.items()
    ]
    yield Metric("operations", "", True, "Operations whose completion was taken.", tuple(statuses))
    values: tuple[tuple[str, str, str, Callable[[OperationStats], float]], ...] = (
        ("operation", "bytes", "Bytes of operations that did not fail.", lambda one: one.bytes),
        ("operation_missing", "bytes", "Bytes of these that are missing.", lambda one: one.missing_bytes),
        ("operation_repaired_segments", "", "Segments of these repaired.", lambda one: one.repaired_segments),
    )
    for name, unit, text, read in values:
        yield Metric(name, unit, True, text, tuple(({"kind": kind}, read(one)) for kind, one in found))


def cumulative(stats: OperationStats) -> list[tuple[str, float]]:
    """The histogram as Prometheus has it: (upper bound in seconds as text, operations up to it), "+Inf" last.

    >>> one = OperationStats(count=3, statuses={"complete": 3}, bytes=0, missing_bytes=0, repaired_segments=0,
    ...                      seconds=0.1, histogram=((2**9 / 1e9, 1), (2**11 / 1e9, 2)))
    >>> cumulative(one)[:3], cumulative(one)[-1]
    ([('1.024e-06', 1), ('2.048e-06', 3), ('4.096e-06', 3)], ('+Inf', 3))
    """
    bounds = [2**bits / 1e9 for bits in _BITS]
    found = [(str(bound), sum(count for top, count in stats.histogram if top <= bound)) for bound in bounds]
    return [*found, ("+Inf", sum(count for _, count in stats.histogram))]


def _peers(peers: Iterable[PeerStats]) -> Iterator[Metric]:
    labelled = [({"peer": str(one.rank)}, one) for one in peers]
    of_peers: tuple[tuple[str, str, str, Callable[[PeerStats], float]], ...] = (
        ("peer_up", "", "1 if the peer is connected.", lambda one: float(one.is_up)),
        ("peer_failed", "", "1 if the peer failed; 0 if it left.", lambda one: float(one.failure is not None)),
        ("peer_rate", "bytes_per_second", "Rate allowed towards the peer.", lambda one: one.rate_gbps * 1e9 / 8),
    )
    for name, unit, text, of_peer in of_peers:
        yield Metric(name, unit, False, text, tuple((labels, of_peer(one)) for labels, one in labelled))
    paths = [({**labels, "path": str(path.path)}, path) for labels, one in labelled for path in one.paths]
    of_paths: tuple[tuple[str, str, str, Callable[[PathStatus], float]], ...] = (
        ("path_loss", "ratio", "Estimated loss of a path.", lambda one: one.loss),
        ("path_share", "ratio", "Part of the peer's data on a path.", lambda one: one.share),
        ("path_suspended", "", "1 if a path is only probed.", lambda one: float(one.silent)),
    )
    for name, unit, text, of_path in of_paths:
        yield Metric(name, unit, False, text, tuple((labels, of_path(one)) for labels, one in paths))
    rtts = [(labels, one.rtt_us / 1e6) for labels, one in paths if one.rtt_us is not None]
    yield Metric("path_rtt", "seconds", False, "Round-trip time of a path.", tuple(rtts))
    sent = [(labels, one.packets_sent) for labels, one in paths]
    yield Metric("path_packets_sent", "", True, "Packets sent to the peer on a path.", tuple(sent))
