"""``Context``: the API of one rank of a job, which posts its transfers."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from mlt import _core, _waits, priority
from mlt._shared import first_failure, known_variables
from mlt._shared.argument_types import check_types, explained
from mlt._shared.loss_bounds import loss_bound_of
from mlt._waits import WaitWatch as WaitWatch  # for the type
from mlt.collectives import GroupCollectives
from mlt.errors import (
    ConfigError,
    InvalidBufferError,
    MltError,
    PortInUseError,
    RendezvousError,
    UnknownOperationError,
    WaitTimeoutError,
)
from mlt.job import address as own_address
from mlt.job import ending, failure_report, rendezvous
from mlt.job import secret as secret_module
from mlt.job.configuration import JobArguments, JobConfig
from mlt.operation import Completion, Operation, completion_of
from mlt.options import arguments, qos, service_loads, times
from mlt.options import io_threads as io_threads_module
from mlt.options import paths as paths_module
from mlt.options.arguments import TransportArguments
from mlt.stats import ContextStats, PeerStats, Recorder

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from mlt._callbacks import Callbacks

Fill = Literal["zero", "keep"]
Stop = Literal["patient", "eager"]

_has_failed = attrgetter("failed")  # of a native completion: called without Python's own frames
_open_contexts: weakref.WeakSet[Context] = weakref.WeakSet()
_warned_of_small_buffer = False


class ContextArguments(JobArguments, TransportArguments, total=False):
    """Keyword arguments of ``Context``."""


_TYPES = {**ContextArguments.__annotations__, **dict.fromkeys(("rank", "world_size", "services"), "int | None")}
# Of the options that are text, for errors.
_FORMS = {
    "job": '"training-1"',
    "master_addr": '"10.0.0.1"',
    "host": '"10.0.0.2"',
    "interface": '"eth1" or "10.1.0.0/16"',
    "datapath": '"udp"',
    "qos_policy": '"policy.yaml"',
    "faults": "Faults(drop=0.01)",
}


class Context(GroupCollectives):
    """The transport of one rank. Blocks until all ranks of the job are connected, or know each other's addresses
    (``connects_on_use``); safe to use from any thread.

    Arguments left None come from the environment (``JobConfig.resolve``).

    ``services``: number of summation services; their ranks follow the workers'.
    ``host``: this rank's address. ``interface``: a choice of interfaces ("eth1", "10.1.0.0/16", "^docker": see
    ``mlt.job.interfaces``). Without both, the address of the interface that routes to rank 0.
    ``secret``: 16 bytes or more, known only to the job's ranks; each rank proves that it knows the secret. None:
    MLT_JOB_SECRET, or the file that MLT_JOB_SECRET_FILE names. Without a secret, all addresses must be loopback unless
    MLT_INSECURE=1. See docs/security.md.
    ``faults``: injected loss, delay and other faults (``mlt.options.faults``).
    ``segment_bytes``: payload of a packet, a multiple of 8 (None: from the interface's MTU). ``line_rate_gbps``: the
    interface's rate (None: the rate it reports).
    ``operation_timeout``, ``connect_timeout``, ``peer_timeout``, ``suspended_timeout``: seconds (``mlt.options.times``;
    None: MLT_OPERATION_TIMEOUT, MLT_CONNECT_TIMEOUT, MLT_PEER_TIMEOUT, MLT_SUSPENDED_TIMEOUT, else 300, 60, 3 and 30).
    The first is the default limit of an operation, the second limits the start of the job. A peer that is silent for
    the third has failed; it has the fourth while its host acknowledges, because its process is stopped.
    ``qos_policy``: policy file of ``mlt switch``, as a path or its content as a mapping (None: the file that
    MLT_QOS_POLICY names). Packets carry its DSCPs; its data classes are the traffic classes. Without a policy, seven
    traffic classes have DSCP 3, 7, 11, 15, 19, 23 and 27, and control has 31. All ranks need the same policy.
    ``paths``: the paths to each peer over which packets are sprayed (``mlt.options.paths``): a number, interfaces or
    addresses, mappings, or a YAML file. None: MLT_PATHS, else one path. All ranks need the same number.
    ``busy_poll_us``: time for which the kernel polls the interface when a read finds the socket empty (needs
    CAP_NET_ADMIN).
    ``spin_us``: max time for which a waiting thread polls the network before it sleeps (None: MLT_SPIN_US, else 200;
    0: it sleeps at once). The thread learns how long polling pays. It does not poll while runnable threads outnumber
    the CPUs.
    ``shares_by_rate``: all-reduces around a ring give slow links less to carry, as far as all ranks of a group say so
    (None: MLT_SHARES_BY_RATE, else False). The order of a sum then depends on measured rates, so that two runs may
    differ in the last bit. See docs/collectives.md.
    ``checksums``: collectives, push-pulls, sends and receives have a checksum, from one rank's memory to another's
    (None: MLT_CHECKSUMS, else False); the same on every rank. Data that arrives changed fails the call with a
    CancelledError that names the sender. It costs CPU time. See docs/collectives.md.
    ``erasure_correction``: exact tensors get parity packets, from which receivers restore lost segments, where packets
    were lost lately and a repair would take longer (None: MLT_ERASURE_CORRECTION, else False). See docs/bound.md.
    ``connects_on_use``: two ranks are connected when one of them first posts something to the other, instead of all
    with all at the start (None: MLT_CONNECTS_ON_USE, else False); the same on every rank. That post waits for the
    connection, at most ``connect_timeout``. Ranks that exchange nothing cost nothing. See docs/scale.md.
    ``io_threads`` and ``io_cpus`` were removed; a context that sets them is rejected.
    ``datapath``: carries datagrams (None: MLT_DATAPATH, else ``auto``): ``udp``, ``vma``, ``xdp``, or ``auto``, which
    is ``vma`` under libvma and ``udp`` elsewhere, with shared memory to ranks of the same host and user. Ranks may use
    different ones. See docs/datapaths.md.
    ``max_operations``, ``max_tags``, ``early_segments``, ``early_transfers``, ``max_window_mib``: limits
    (``mlt.options.limits``; None: MLT_MAX_OPERATIONS, MLT_MAX_TAGS, MLT_EARLY_SEGMENTS, MLT_EARLY_TRANSFERS,
    MLT_MAX_WINDOW_MIB, else 65,536, 262,144, 16,384, 2,048 and 512). See docs/limits.md.

    Warns once per process (RuntimeWarning) if the kernel grants a smaller socket buffer than requested. Raises
    ConfigError, PortInUseError, PeerMismatchError or RendezvousError; nothing stays open then.

    >>> with mlt.Context(rank=0, world_size=1, operation_timeout=60) as alone:
    ...     alone
    <mlt.Context rank 0 of 1, job 'default'>
    """

    def __init__(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        services: int | None = None,
        **options: Unpack[ContextArguments],
    ) -> None:
        if unknown := options.keys() - ContextArguments.__annotations__:
            raise TypeError(f"Context() got an unexpected keyword argument {min(unknown)!r}")
        self._meets = False  # from when on rank 0 knows how this rank fares
        try:
            self._start(rank, world_size, services, options)
        except MltError as error:
            if not self._meets or isinstance(error, PortInUseError):
                place: Any = {name: value for name, value in options.items() if name in JobArguments.__annotations__}
                self._report_failure(error, place, rank)
            if not isinstance(error, ConfigError | RendezvousError):
                raise
            # Of the job's place or options: the text says it all, and this package's frames would hide it.
            raise error.with_traceback(None) from None

    def _start(self, rank: int | None, world_size: int | None, services: int | None, options: ContextArguments) -> None:
        place: Any = {name: value for name, value in options.items() if name in JobArguments.__annotations__}
        given = {"rank": rank, "world_size": world_size, "services": services, **options}
        check_types("Context", _TYPES, given, _FORMS)
        known_variables.warn_once()
        config = JobConfig.resolve(rank=rank, world_size=world_size, services=services, **place)
        self._config = config
        service_loads.check_plan(
            rank=config.rank, world_size=config.world_size, services=config.services, job=config.job
        )
        self._workers = tuple(range(config.world_size))
        self._rendezvous_counts: Counter[str] = Counter()
        self._callbacks: Callbacks | None = None
        self._recorder: Recorder | None = None
        self._recorder_creation = threading.Lock()
        self._uses_services = False
        self._max_dead_services = 0
        self._service_loads: tuple[float, ...] | None = None  # of the first PushPull
        connect_timeout = times.resolve(options, os.environ).get("connect_timeout", times.CONNECT_SECONDS)
        connect_ns = times.nanoseconds(connect_timeout, "connect_timeout")
        dscp = qos.resolve(options.get("qos_policy"))
        ways = paths_module.resolve(options.get("paths"), ranks=config.size, rank=config.rank)
        io_threads_module.refuse(options.get("io_threads"), options.get("io_cpus"))
        native = _core.Options(data_dscp=list(dscp.data), control_dscp=dscp.control)
        arguments.apply(options, native)
        self._checksums = bool(native.checksums)
        deadline = time.monotonic() + connect_timeout
        address = own_address.local_host(config)
        if config.size > 1:
            secret_module.require(config.secret, config.insecure, address, f"rank {config.rank} would listen at")
        native.paths = [way.to_native() for way in ways]
        native.rank, native.ranks, native.job, native.host = config.rank, config.size, config.job_id, address
        native.secret = config.secret.reveal() if config.secret is not None else b""
        native.insecure = config.insecure
        self._engine = _core.Engine(native)
        _warn_of_small_buffer(self._engine.receive_buffer_bytes, self._engine.wanted_receive_buffer_bytes)
        try:
            own = rendezvous.Endpoint(config.rank, address, self._engine.control_port)
            self._meets = True
            table = self._meet(own, connect_timeout, max(len(ways), 1), native.connects_on_use)
            self._hosts = _host_numbers(table)
            self._engine.set_hosts(self._hosts)
            left_ns = max(round((deadline - time.monotonic()) * 1e9), min(connect_ns, 1_000_000_000))
            if native.connects_on_use:  # the time of each connection, from its first use
                left_ns = connect_ns
            with _waits.ConnectWatch(self, table, connect_timeout):
                self._engine.connect([(one.rank, one.host, one.port) for one in table if one != own], left_ns)
        except BaseException as error:
            reason = ending.reason_of(type(error), error)
            first_failure.record(config.rank, ending.blamed(error))
            self._engine.close(reason)
            raise
        _open_contexts.add(self)

    def _report_failure(self, error: MltError, place: dict[str, Any], rank: int | None) -> None:
        """Let the ranks that wait for this one know that it will not come."""
        failure_report.report(error, place, rank=rank)

    def _meet(
        self, own: rendezvous.Endpoint, timeout: float, paths: int, connects_on_use: bool
    ) -> list[rendezvous.Endpoint]:
        """The endpoints of all ranks."""
        return rendezvous.meet(
            self._config,
            own,
            timeout,
            dscp=self.dscp,
            paths=paths,
            connects_on_use=connects_on_use,
            checksums=self._checksums,
            counts=self._rendezvous_counts,
        )

    @property
    def rank(self) -> int:
        """Rank of this process: workers come first, then the services."""
        return self._config.rank

    @property
    def world_size(self) -> int:
        """Number of workers."""
        return self._config.world_size

    @property
    def services(self) -> int:
        """Number of summation services; their ranks follow the workers'."""
        return self._config.services

    @property
    def hosts(self) -> list[int]:
        """The number of each rank's host, services included: ranks that announced one address share a host."""
        return list(self._hosts)

    @property
    def service_loads(self) -> tuple[float, ...]:
        """The part of all push-pulled tensors that each summation service sums, in the order of their ranks.

        Those of the first ``PushPull``; before it, what one without ``loads`` would take: the plan that MLT_PLAN names,
        else by the ranks' hosts. They add up to 1. Raises ConfigError if the plan does not fit the job.
        """
        return self._resolve_loads(None) if self._service_loads is None else self._service_loads

    def _resolve_loads(self, given: Sequence[float] | None) -> tuple[float, ...]:
        if self.services == 0:
            return ()
        return service_loads.resolve(given, self._hosts, self.world_size, job=self._config.job)

    @property
    def size(self) -> int:
        """Number of ranks: workers and services."""
        return self._config.size

    @property
    def config(self) -> JobConfig:
        """The job configuration, resolved from the arguments and the environment."""
        return self._config

    @property
    def dscp(self) -> qos.DscpMap:
        """DSCPs of the packets, by traffic class."""
        return qos.DscpMap(data=tuple(self._engine.data_dscp), control=self._engine.control_dscp)

    @property
    def checksums(self) -> bool:
        """Whether collectives, push-pulls, sends and receives have checksums from memory to memory."""
        return self._checksums

    @property
    def engine(self) -> _core.Engine:
        """The native engine; for the modules of this package only."""
        return self._engine

    def watch_wait(self, what: str, peers: Iterable[int]) -> WaitWatch:
        """The watch of a wait that begins; for the modules of this package only."""
        return WaitWatch(self, what, peers)

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._engine.closed

    def post_send(
        self,
        tensor: Any,
        prio_func: priority.PriorityFunction | None = None,
        *,
        to: int,
        tag: int = 0,
        layer: int = 0,
        layers: int = 1,
        timeout: float | None = None,
        dtype: str | None = None,
    ) -> Operation:
        """Start sending ``tensor`` to rank ``to``, which receives it with ``from_`` set to this rank and the same
        ``tag``.

        ``tensor``: a C-contiguous numpy array, torch CPU tensor or object with the buffer protocol. It is not copied:
        do not change it until its completion is taken; the context keeps it alive until then. ``dtype`` reads its bytes
        as another element type ("bfloat16", which numpy lacks). ``prio_func`` chooses the important segments
        (``mlt.priority``; None: the paper's policy by magnitude for floating point, all important otherwise). ``layer``
        of ``layers``: position of the tensor in the model, 0 in front; front layers are sent first. ``timeout`` in
        seconds limits the operation. Raises InvalidBufferError, UnknownPeerError, PeerFailedError, LimitError.

        >>> send = rank_0.post_send(np.arange(4), mlt.priority.all_important, to=1, tag=8, timeout=10)
        >>> received = np.empty(4, int)
        >>> rank_1.wait(rank_1.post_recv(received, from_=0, tag=8)).bytes, received.tolist()
        (32, [0, 1, 2, 3])
        """
        if layers < 1 or not 0 <= layer < layers:
            raise ConfigError(f"layer {layer} of {layers}: give 0 <= layer < layers (tensor to rank {to}, tag {tag})")
        by_magnitude = prio_func is None or prio_func is priority.magnitude
        priorities = None
        if prio_func is not None and not by_magnitude and prio_func is not priority.all_important:
            grid = self._grid(_core.tensor_info(tensor, dtype or ""), to, layer, layers)
            priorities = self._segment_priorities(tensor, prio_func, grid, f"send of tag {tag} to rank {to}")
        try:
            # Positional: keyword arguments would cost more than the post.
            operation = self._engine.post_send(
                tensor,
                to,
                _tag(tag),
                layer,
                layers,
                priorities,
                by_magnitude,
                times.limit_ns(timeout),
                dtype or "",
            )
        except TypeError as error:
            given = {"to": to, "tag": tag, "layer": layer, "layers": layers, "dtype": dtype}
            raise explained(error, "post_send", Context.post_send.__annotations__, given) from None
        return Operation(operation, "send", to, tag, self)

    def post_recv(
        self,
        tensor: Any,
        loss_bound: float | str = 0.0,
        *,
        from_: int,
        tag: int = 0,
        fill: Fill = "zero",
        stop: Stop = "patient",
        deadline: float | None = None,
        timeout: float | None = None,
        dtype: str | None = None,
        up_to: bool = False,
    ) -> Operation:
        """Start receiving into ``tensor`` the transfer that rank ``from_`` sends with ``tag``.

        ``tensor``: as for ``post_send``, and writable; do not access it until its completion is taken. ``loss_bound``
        in [0, 1), or text such as "10%": fraction of the elements that may be missing at completion (above 0 for
        floating point only).
        ``fill``: missing ranges become zero ("zero"), or keep the tensor's old values ("keep"). ``stop``: "patient"
        completes when all missing segments are declared lost, "eager" as soon as ``1 - loss_bound`` has arrived. The
        receive completes with what it has (status "deadline") ``deadline`` seconds after the post; it fails after
        ``timeout`` seconds. Raises as ``post_send`` does.

        ``up_to``: the sent tensor may be shorter, or empty. It fills the front of ``tensor``; the completion's
        ``bytes`` is its size, and its missing ranges and ``loss_bound`` are of that size. A longer one fails at both
        ranks. With ``deadline`` such a receive fails if nothing of the tensor has arrived by then.

        >>> buffer = bytearray(100)
        >>> receive = rank_1.post_recv(buffer, from_=0, tag=9, up_to=True)
        >>> send = rank_0.post_send(b"short", to=1, tag=9)
        >>> bytes(buffer[: rank_1.wait(receive).bytes])
        b'short'

        >>> gradient = np.empty(100_000, np.float32)
        >>> receive = rank_1.post_recv(gradient, loss_bound=0.1, from_=0, tag=7)
        >>> send = rank_0.post_send(np.full(100_000, 0.5, np.float32), to=1, tag=7)
        >>> done = rank_1.wait(receive)
        >>> done.status, done.loss_fraction, float(gradient.max())
        ('complete', 0.0, 0.5)
        >>> rank_0.wait(send).bytes
        400000
        """
        try:
            operation = self._engine.post_recv(
                tensor,
                from_,
                _tag(tag),
                *_receive_options(loss_bound, fill, stop, deadline, timeout),
                dtype or "",
                up_to,
            )
        except TypeError as error:
            given = {"loss_bound": loss_bound, "from_": from_, "tag": tag, "dtype": dtype, "up_to": up_to}
            raise explained(error, "post_recv", Context.post_recv.__annotations__, given) from None
        return Operation(operation, "recv", from_, tag, self)

    def post_sends(
        self,
        transfers: Iterable[tuple[Any, int] | tuple[Any, int, int]],
        prio_func: priority.PriorityFunction | None = None,
        *,
        layer: int = 0,
        layers: int = 1,
        timeout: float | None = None,
        dtype: str | None = None,
    ) -> list[Operation]:
        """Start many sends with one call; of small tensors several times as many a second as with ``post_send``.

        ``transfers``: tuples ``(tensor, to)`` or ``(tensor, to, tag)``. The other arguments are those of ``post_send``,
        and apply to each. Returns the operations in the same order. What ``post_send`` raises rejects the list as a
        whole: none is posted, and the error says which it is about. What ends an operation after its post is its
        completion (a failed peer, more tags than ``max_tags``). The peers receive by ``post_recvs`` or ``post_recv``.

        >>> sends = rank_0.post_sends([(bytes([n] * 4), 1, n) for n in range(100)])
        >>> buffers = [bytearray(4) for _ in range(100)]
        >>> receives = rank_1.post_recvs([(buffer, 0, n) for n, buffer in enumerate(buffers)])
        >>> len(rank_1.wait_all(receives)), buffers[99].hex(), sum(done.bytes for done in rank_0.wait_all(sends))
        (100, '63636363', 400)
        """
        listed = _listed(transfers, "post_sends")
        if layers < 1 or not 0 <= layer < layers:
            raise ConfigError(f"layer {layer} of {layers}: give 0 <= layer < layers ({len(listed)} sends)")
        by_magnitude = prio_func is None or prio_func is priority.magnitude
        priorities = None
        if prio_func is not None and not by_magnitude and prio_func is not priority.all_important:
            priorities = []
            self._engine.check_sends(listed, dtype or "")
            for one in listed:
                tensor, to = one[0], one[1]
                grid = self._grid(_core.tensor_info(tensor, dtype or ""), to, layer, layers)
                what = f"send of tag {one[2] if len(one) > 2 else 0} to rank {to}"
                priorities.append(self._segment_priorities(tensor, prio_func, grid, what))
        try:
            ids = self._engine.post_sends(
                listed, layer, layers, priorities, by_magnitude, times.limit_ns(timeout), dtype or ""
            )
        except TypeError as error:
            given = {"layer": layer, "layers": layers, "dtype": dtype}
            raise explained(error, "post_sends", Context.post_sends.__annotations__, given) from None
        return self._operations(ids, "send", listed)

    def post_recvs(
        self,
        transfers: Iterable[tuple[Any, int] | tuple[Any, int, int]],
        loss_bound: float | str = 0.0,
        *,
        fill: Fill = "zero",
        stop: Stop = "patient",
        deadline: float | None = None,
        timeout: float | None = None,
        dtype: str | None = None,
        up_to: bool = False,
    ) -> list[Operation]:
        """Start many receives with one call, as ``post_sends`` does for sends.

        ``transfers``: tuples ``(tensor, from_)`` or ``(tensor, from_, tag)``. The other arguments are those of
        ``post_recv``, and apply to each. What ``post_recv`` raises rejects the list as a whole.

        >>> buffers = [bytearray(1), bytearray(1)]
        >>> receives = rank_1.post_recvs([(buffers[0], 0, 5), (buffers[1], 0, 6)])
        >>> sends = rank_0.post_sends([(b"a", 1, 5), (b"b", 1, 6)])
        >>> [done.status for done in rank_1.wait_all(receives)], bytes(buffers[0] + buffers[1])
        (['complete', 'complete'], b'ab')
        """
        listed = _listed(transfers, "post_recvs")
        try:
            ids = self._engine.post_recvs(
                listed,
                *_receive_options(loss_bound, fill, stop, deadline, timeout),
                dtype or "",
                up_to,
            )
        except TypeError as error:
            given = {"loss_bound": loss_bound, "dtype": dtype, "up_to": up_to}
            raise explained(error, "post_recvs", Context.post_recvs.__annotations__, given) from None
        return self._operations(ids, "recv", listed)

    def _operations(self, ids: list[int], kind: Literal["send", "recv"], transfers: Sequence[Any]) -> list[Operation]:
        return [
            Operation(number, kind, one[1], one[2] if len(one) > 2 else 0, self)
            for number, one in zip(ids, transfers, strict=True)
        ]

    def poll_cq(self, max_completions: int = 64) -> list[Completion]:
        """Take up to ``max_completions`` completions that no thread waits for, oldest first. Never blocks.

        Includes failed operations: see ``Completion.failed`` and ``Completion.raise_if_failed``.

        >>> send = rank_0.post_send(b"sixteen bytes...", to=1)
        >>> rank_1.wait(rank_1.post_recv(bytearray(16), from_=0)).status
        'complete'
        >>> while not (found := rank_0.poll_cq()):
        ...     pass
        >>> found[0].op == send
        True
        """
        natives = self._engine.poll(max_completions)
        if self._recorder is not None:
            self._recorder.add(natives)
        return [completion_of(self, native) for native in natives]

    def wait(self, op: Operation, timeout: float | None = None) -> Completion:
        """Block until ``op`` completes; other Python threads run meanwhile.

        Raises the TransferError of a failed operation, WaitTimeoutError after ``timeout`` seconds (the operation stays
        in progress), UnknownOperationError if its completion was taken before, TypeError if ``op`` is not an operation.
        """
        if not isinstance(op, Operation):
            raise TypeError(
                f"wait() takes the Operation that a post_* function returned, not {type(op).__name__}; "
                "collectives without post_ have waited already"
            )
        if op._watch is not None:
            native = op._watch.wait(op, timeout)
        else:
            native = self._engine.wait(op._id, -1 if timeout is None else max(round(timeout * 1e9), 0), op.on_quiet)
            if native is not None:
                if self._recorder is not None:
                    self._recorder.add((native,))
                if op._watch is not None:
                    op.settle(native)
        if native is None:
            raise WaitTimeoutError(
                f"rank {self.rank}: the {op} is still in progress after {timeout:g} s (wait again or cancel it)",
                peer=op.peer if op.peer >= 0 else None,
            )
        completion = Completion(op, native)
        if native.failed:
            completion.raise_if_failed()
        return completion

    def wait_all(
        self, ops: Iterable[Operation], timeout: float | None = None, *, raise_failed: bool = True
    ) -> list[Completion]:
        """Block until each of ``ops`` has completed or failed, and return the completions in the same order.

        For many small operations cheaper than a ``wait`` for each: the thread wakes up once. Then raises the
        TransferError of the first in this order that failed; with ``raise_failed=False`` see ``Completion.failed``.
        Raises WaitTimeoutError after ``timeout`` seconds: all operations that had no callback can then be waited for
        again. Raises UnknownOperationError if the completion of one was taken before, or if ``ops`` has it twice. A
        callback or coroutine that another thread adds to one of ``ops`` meanwhile continues once all have ended.

        >>> ops = rank_0.post_sends([(b"one", 1, 3), (b"two", 1, 4)])
        >>> ops += rank_1.post_recvs([(bytearray(3), 0, 3), (bytearray(2), 0, 4)])[:0]
        >>> done = rank_0.wait_all(ops, timeout=10, raise_failed=False)
        >>> [one.status for one in done]
        ['complete', 'size_mismatch']
        """
        listed = list(ops)
        has_watched = False
        for op in listed:
            if type(op) is not Operation or op._context is not self:
                self._refuse_to_wait(op)
            has_watched = has_watched or op._watch is not None
        natives = self._wait_all_watched(listed, timeout) if has_watched else self._wait_all(listed, timeout)
        if natives is None:
            left = [op for op in listed if not op.done()] or listed
            raise WaitTimeoutError(
                f"rank {self.rank}: {len(left)} of {len(listed)} operations are still in progress after {timeout:g} s, "
                f"the first of them the {left[0]} (wait again or cancel them)"
            )
        completions = list(map(Completion, listed, natives))
        if raise_failed and any(map(_has_failed, natives)):
            for completion in completions:
                completion.raise_if_failed()
        return completions

    def _refuse_to_wait(self, op: object) -> NoReturn:
        if type(op) is not Operation:
            raise TypeError(f"wait_all() takes Operations of sends, receives and collectives, not {type(op).__name__}")
        raise ConfigError(f"rank {self.rank}: wait_all(): another context posted the {op}: wait for it there")

    def _wait_all(self, ops: list[Operation], timeout: float | None) -> list[_core.Completion] | None:
        """None: the time passed, and none was taken."""

        def on_quiet(seconds: int) -> None:
            next((op for op in ops if not op.done()), ops[0]).on_quiet(seconds)

        timeout_ns = -1 if timeout is None else max(round(timeout * 1e9), 0)
        natives = self._engine.wait_all([op._id for op in ops], timeout_ns, on_quiet)
        if natives is not None:
            if self._recorder is not None:
                self._recorder.add(natives)
            for op, native in zip(ops, natives, strict=True):
                if op._watch is not None:  # since this wait began
                    op.settle(native)
        return natives

    def _wait_all_watched(self, ops: list[Operation], timeout: float | None) -> list[_core.Completion] | None:
        """Those with callbacks first: a wait for them may be repeated."""
        for op, count in Counter(ops).items():
            if count > 1:
                raise UnknownOperationError(f"rank {self.rank}: wait_all() has the {op} {count} times: name each once")
        deadline = None if timeout is None else time.monotonic() + timeout
        found: dict[Operation, _core.Completion] = {}

        def left() -> float | None:
            return None if deadline is None else max(deadline - time.monotonic(), 0.0)

        for op in ops:
            if op._watch is not None and (native := op._watch.wait(op, left())) is not None:
                found[op] = native
            elif op._watch is not None:
                return None
        plain = [op for op in ops if op not in found]
        natives = self._wait_all(plain, left())
        if natives is None:
            return None
        found.update(zip(plain, natives, strict=True))
        return [found[op] for op in ops]

    def cancel(self, op: Operation, *, reason: str = "") -> None:
        """Request the cancellation of ``op``. It still completes: as "cancelled", or with its earlier status.

        ``reason``: in the error of every member of a collective, in a few words.
        """
        self._engine.cancel(op.id, reason)

    def counters(self) -> dict[str, int]:
        """All counters of the endpoint, the datapath and the control connections, by name; at rank 0 also those of its
        rendezvous. docs/monitoring.md and docs/security.md list those that an operator should watch."""
        return {**self._engine.counters(), **self._rendezvous_counts}

    def stats(self) -> ContextStats:
        """The rank's counters, the operations whose completions were taken since the first call, by kind with a
        histogram of their times, and the state of every peer (``mlt.stats``).

        The first call starts the recording of operations, so call it once at the start; a context that never calls it
        records none. Recording takes about a microsecond per operation, and a call tens of microseconds and a few more
        for each peer. Also works after ``close``. ``stats().as_dict()`` is for JSON; docs/monitoring.md says what to
        watch, and ``mlt.metrics`` exports it.

        >>> before = rank_1.stats()
        >>> receive = rank_1.post_recv(bytearray(16), from_=0)
        >>> send = rank_0.post_send(b"sixteen bytes...", to=1)
        >>> done = rank_1.wait(receive)
        >>> received = rank_1.stats().operations["recv"]
        >>> received.count, received.bytes, received.missing_bytes, received.seconds > 0
        (1, 16, 0, True)
        >>> [peer.rank for peer in rank_1.stats().peers if peer.is_up]
        [0, 2]
        """
        with self._recorder_creation:
            recorder = self._recorder = self._recorder or Recorder()
        config, engine = self._config, self._engine
        return ContextStats(
            rank=config.rank,
            world_size=config.world_size,
            services=config.services,
            job=config.job,
            recorded_seconds=recorder.seconds,
            counters=self.counters(),
            operations=recorder.operations(),
            peers=tuple(
                PeerStats(
                    rank=peer,
                    is_up=engine.is_peer_up(peer),
                    has_left=engine.has_peer_left(peer),
                    failure=self.peer_failure(peer),
                    rate_gbps=self.rate_gbps(peer),
                    paths=self.paths(peer),
                )
                for peer in range(config.size)
                if peer != config.rank
            ),
        )

    def segment_grid(self, tensor: Any, *, to: int, layer: int = 0, layers: int = 1) -> priority.SegmentGrid:
        """The grid of segments into which ``tensor`` would be cut for rank ``to``."""
        return self._grid(_core.tensor_info(tensor), to, layer, layers)

    def rate_gbps(self, peer: int) -> float:
        """Rate that the rate controller now allows towards ``peer``, in Gbit/s."""
        return self._engine.rate_bits_per_second(peer) / 1e9

    def paths(self, peer: int) -> tuple[paths_module.PathStatus, ...]:
        """State of each path to ``peer``, path 0 first. System calls on a path are counted over all peers.

        Raises UnknownPeerError.
        """
        return tuple(paths_module.PathStatus.of(native) for native in self._engine.paths(peer))

    def is_peer_up(self, peer: int) -> bool:
        """Whether ``peer`` is connected: it has neither left nor failed."""
        return self._engine.is_peer_up(peer)

    def peer_failure(self, peer: int) -> str | None:
        """Why ``peer`` failed (it died, was silent, ...); None while it is connected and after it left."""
        return self._engine.peer_failure(peer) or None

    def close(self, *, failure: str = "") -> None:
        """Leave the job and return every tensor to the caller; operations in progress fail. Idempotent.

        ``failure``: why this rank ends before its work is done, in a few words. The others then report that it failed,
        with this reason, instead of that it left. A ``with`` block that an exception leaves, and a program that an
        exception ends, give the exception's type.
        """
        self._close(failure, None)

    def _close(self, failure: str, blamed: int | None) -> None:
        if failure and not self.closed:
            first_failure.record(self.rank, blamed)
        self._engine.close(failure)
        _open_contexts.discard(self)  # now: an interpreter that ends meanwhile waits for this
        if self._callbacks is not None:
            self._callbacks.join()

    def close_after(self, error: BaseException | None, failure: str) -> None:
        """``close`` because of ``failure``, which ``error`` caused if it is one; for the modules of this package
        only."""
        self._close(failure, ending.blamed(error))

    def close_at_exit(self) -> None:
        """Close at the interpreter's end, and report why it ends; for the modules of this package only.

        Python tells its exit status to none of its own handlers. Unless an exception ends the program, the engine
        therefore outlives the interpreter, and reports a status other than 0 as a failure.
        """
        failure, blamed = ending.unhandled(), ending.blamed(getattr(sys, "last_value", None))
        if failure:
            first_failure.record(self.rank, blamed)
        self._engine.close_at_exit(failure)
        self._close(failure, blamed)

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(ending.reason_of(kind, error), ending.blamed(error))

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"job {self._config.job!r}"
        return f"<mlt.Context rank {self.rank} of {self.size}, {state}>"

    def _grid(self, info: _core.TensorInfo, to: int, layer: int, layers: int) -> priority.SegmentGrid:
        return priority.SegmentGrid(
            segment_count=self._engine.segment_count(to, info.bytes),
            segment_elements=self._engine.segment_bytes(to) // info.element_bytes,
            elements=info.elements,
            dtype=info.dtype,
            traffic_class=self._engine.traffic_class(layer, layers),
            traffic_classes=len(self._engine.data_dscp),
        )

    def _segment_priorities(
        self, tensor: Any, prio_func: priority.PriorityFunction, grid: priority.SegmentGrid, operation: str
    ) -> Any:
        try:
            return priority.priority_bits(prio_func(priority.flat(tensor, grid.dtype, grid.elements), grid), grid)
        except InvalidBufferError as error:
            raise InvalidBufferError(
                f"rank {self.rank}: {operation} was rejected: priority function: {error} (tensor of {grid.elements} "
                f"{grid.dtype})"
            ) from None


def _host_numbers(table: Iterable[rendezvous.Endpoint]) -> list[int]:
    """A number for the host of each rank: those with one address share a host."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(one.host, len(numbers)) for one in table]


def _warn_of_small_buffer(granted: int, wanted: int) -> None:
    """Warn once per process: the limit is the host's."""
    global _warned_of_small_buffer
    if granted >= wanted or _warned_of_small_buffer:
        return
    _warned_of_small_buffer = True
    warnings.warn(
        f"the kernel granted a receive buffer of {granted} of {wanted} bytes: bursts from several peers "
        f"will be lost and sent again. Raise the limit: sudo sysctl -w net.core.rmem_max={wanted} "
        f"net.core.wmem_max={wanted}",
        RuntimeWarning,
        stacklevel=4,
    )


def _tag(tag: int) -> int:
    # Push-pull uses the upper half.
    if not 0 <= tag < 2**63:
        raise ConfigError(f"tag is {tag}; tags are integers in [0, 2**63)")
    return tag


def _listed(transfers: Iterable[Any], function: str) -> tuple[Any, ...]:
    """A copy, because ``prio_func`` and other threads may change the caller's list."""
    try:
        entries = iter(transfers)
    except TypeError:
        raise TypeError(
            f"{function}() takes a list of tuples (tensor, rank, tag), not a {type(transfers).__name__}"
        ) from None
    return tuple(entries)


def _receive_options(
    loss_bound: float | str, fill: str, stop: str, deadline: float | None, timeout: float | None
) -> tuple[float, bool, bool, int, int]:
    """The arguments of the engine's receives, in its order."""
    return (
        loss_bound_of(loss_bound) if isinstance(loss_bound, str) else loss_bound,
        fill != "zero" and _choice(fill, "fill", "zero", "keep"),
        stop != "patient" and _choice(stop, "stop", "patient", "eager"),
        times.limit_ns(deadline, "deadline"),
        times.limit_ns(timeout),
    )


def _choice(value: str, name: str, off: str, on: str) -> bool:
    if value not in (off, on):
        raise ConfigError(f"{name} is {value!r}; give {off!r} or {on!r}")
    return value == on


@atexit.register
def _close_all() -> None:
    # A daemon thread that returns from the native library during interpreter shutdown is killed there. The peers would
    # then receive no goodbye.
    for context in list(_open_contexts):
        context.close_at_exit()
