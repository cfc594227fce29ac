"""``Context``: one rank's place in a job, and the transfers it posts."""

from __future__ import annotations

import atexit
import time
import warnings
import weakref
from collections import Counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from mlt import _core, priority
from mlt.collectives import GroupCollectives
from mlt.errors import ConfigError, InvalidBufferError, WaitTimeoutError
from mlt.job import address as own_address
from mlt.job import rendezvous
from mlt.job import secret as secret_module
from mlt.job.configuration import JobArguments, JobConfig
from mlt.operation import Completion, Operation, completion_of
from mlt.options import arguments, qos
from mlt.options import io_threads as io_threads_module
from mlt.options import paths as paths_module
from mlt.options.arguments import TransportArguments

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from mlt._callbacks import Callbacks

Fill = Literal["zero", "keep"]
Stop = Literal["patient", "eager"]

_open_contexts: weakref.WeakSet[Context] = weakref.WeakSet()
_warned_of_small_buffer = False
CONNECT_SECONDS = 60.0


class ContextArguments(JobArguments, TransportArguments, total=False):
    """What ``Context`` takes by keyword."""


class Context(GroupCollectives):
    """The transport of one rank. Blocks until all ranks of the job are connected; safe to use from any thread.

    Arguments left None come from the environment (``JobConfig.resolve``). ``services`` counts the summation services
    that follow the workers. ``host`` is this rank's address, or ``interface`` a choice of interfaces ("eth1",
    "10.1.0.0/16", "^docker": see ``mlt.job.interfaces``); without both, that of the interface that routes to rank 0.
    ``secret``: 16 bytes or more that all ranks know and nobody else, by which they prove that they belong to the job
    (None: MLT_JOB_SECRET, or the file that MLT_JOB_SECRET_FILE names; without one all addresses have to be loopback,
    unless MLT_INSECURE=1; see docs/security.md).
    ``faults`` injects losses and more on purpose. ``segment_bytes`` is a packet's payload (a multiple of 8; None: from
    the interface's MTU), ``line_rate_gbps`` the interface's speed (None: what it reports). ``operation_timeout``,
    ``connect_timeout`` and ``peer_timeout`` are seconds: the longest an operation may take unless it says otherwise,
    the longest the job may take to come up, and the silence after which a peer counts as dead. ``qos_policy`` is the
    policy file of ``mlt switch`` (a path, or its content as a mapping; None: the file that MLT_QOS_POLICY names):
    packets carry its DSCPs, and there are as many traffic classes as it has data classes. Without one there are seven,
    of DSCP 3, 7, 11, 15, 19, 23 and 27, and control has 31. All ranks need the same.
    ``paths`` are the ways to each peer that packets are sprayed over (``mlt.options.paths``: a number, interfaces or
    addresses, mappings, or a YAML file; None: what MLT_PATHS says, else one); all ranks need the same number.
    ``busy_poll_us``: how long the kernel polls the interface when a socket is read and empty (needs CAP_NET_ADMIN).
    ``spin_us``: how long at most a thread that waits polls the network before it sleeps (None: MLT_SPIN_US, else 50; 0:
    it sleeps at once). It learns how long polling pays, and does not poll where runnable threads outnumber the CPUs.
    ``io_threads`` and ``io_cpus`` are gone; what still asks for them is refused.
    ``datapath`` is what carries datagrams here (None: MLT_DATAPATH, else ``auto``): ``udp``, ``vma``, ``xdp``, or
    ``auto``, which is ``vma`` under libvma and ``udp`` elsewhere, with shared memory to ranks of this host and user.
    Ranks may differ in it. See docs/datapaths.md.
    ``max_operations``, ``max_tags``, ``early_segments`` and ``early_transfers`` are limits (``mlt.options.limits``;
    None: MLT_MAX_OPERATIONS, MLT_MAX_TAGS, MLT_EARLY_SEGMENTS, MLT_EARLY_TRANSFERS, else 65,536, 262,144, 2,048 and
    2,048). See docs/limits.md.

    Warns once per process (RuntimeWarning) where the kernel grants a smaller socket buffer than it was asked for.
    Raises ConfigError, PortInUseError, PeerMismatchError or RendezvousError; nothing stays open then.
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
        place: Any = {name: value for name, value in options.items() if name in JobArguments.__annotations__}
        config = JobConfig.resolve(rank=rank, world_size=world_size, services=services, **place)
        self._config = config
        self._workers = tuple(range(config.world_size))
        self._rendezvous_counts: Counter[str] = Counter()
        self._callbacks: Callbacks | None = None
        self._uses_services = False
        connect_timeout = options.get("connect_timeout", CONNECT_SECONDS)
        connect_ns = arguments.nanoseconds(connect_timeout, "connect_timeout")
        dscp = qos.resolve(options.get("qos_policy"))
        ways = paths_module.resolve(options.get("paths"), ranks=config.size, rank=config.rank)
        io_threads_module.refuse(options.get("io_threads"), options.get("io_cpus"))
        native = _core.Options(data_dscp=list(dscp.data), control_dscp=dscp.control)
        arguments.apply(options, native)
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
            table = rendezvous.meet(config, own, connect_timeout, dscp=self.dscp, counts=self._rendezvous_counts)
            left_ns = max(round((deadline - time.monotonic()) * 1e9), min(connect_ns, 1_000_000_000))
            self._engine.connect([(one.rank, one.host, one.port) for one in table if one != own], left_ns)
        except BaseException:
            self._engine.close()
            raise
        _open_contexts.add(self)

    @property
    def rank(self) -> int:
        """This process's rank: workers come first, then the services."""
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
    def size(self) -> int:
        """Number of ranks: workers and services."""
        return self._config.size

    @property
    def config(self) -> JobConfig:
        """What the arguments and the environment came to."""
        return self._config

    @property
    def dscp(self) -> qos.DscpMap:
        """The code points that packets carry, by traffic class."""
        return qos.DscpMap(data=tuple(self._engine.data_dscp), control=self._engine.control_dscp)

    @property
    def engine(self) -> _core.Engine:
        """The native engine, for the modules of this package."""
        return self._engine

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
        """Start sending ``tensor`` to rank ``to``; its receive there names this rank and the same ``tag``.

        ``tensor``: a C-contiguous numpy array, torch CPU tensor or object with the buffer protocol. It is not copied:
        leave it unchanged until the completion was taken; the context keeps it alive until then. ``dtype`` reads its
        bytes as another element type ("bfloat16", which numpy lacks). ``prio_func`` says which segments matter
        (``mlt.priority``; None: the paper's policy by magnitude for floating point, all important otherwise).
        ``layer`` of ``layers`` is the tensor's place in the model, 0 in front: front layers go first. ``timeout`` in
        seconds bounds the operation. Raises InvalidBufferError, UnknownPeerError, PeerFailedError, LimitError.
        """
        if layers < 1 or not 0 <= layer < layers:
            raise ConfigError(f"layer {layer} of {layers}: give 0 <= layer < layers (tensor to rank {to}, tag {tag})")
        by_magnitude = prio_func is None or prio_func is priority.magnitude
        tags = None
        if prio_func is not None and not by_magnitude and prio_func is not priority.all_important:
            grid = self._grid(_core.tensor_info(tensor, dtype or ""), to, layer, layers)
            tags = self._segment_tags(tensor, prio_func, grid, f"send of tag {tag} to rank {to}")
        # By position: names of arguments would cost more than the post.
        operation = self._engine.post_send(
            tensor,
            to,
            _tag(tag),
            layer,
            layers,
            tags,
            by_magnitude,
            0 if timeout is None else arguments.nanoseconds(timeout, "timeout"),
            dtype or "",
        )
        return Operation(operation, "send", to, tag, self)

    def post_recv(
        self,
        tensor: Any,
        loss_bound: float = 0.0,
        *,
        from_: int,
        tag: int = 0,
        fill: Fill = "zero",
        stop: Stop = "patient",
        deadline: float | None = None,
        timeout: float | None = None,
        dtype: str | None = None,
    ) -> Operation:
        """Start receiving into ``tensor`` from rank ``from_`` what is sent with ``tag``.

        ``tensor``: as for ``post_send``, and writable; leave it alone until the completion was taken. ``loss_bound`` in
        [0, 1): no more than this fraction of the elements may be missing at completion (floating point only unless 0).
        ``fill``: missing ranges become zero, or keep what the tensor held. ``stop``: "patient" ends when all that is
        missing is known to be lost, "eager" the moment ``1 - loss_bound`` has arrived. ``deadline`` seconds after the
        post the receive completes with what it has (status "deadline"); after ``timeout`` it fails. Raises
        as ``post_send`` does.
        """
        operation = self._engine.post_recv(
            tensor,
            from_,
            _tag(tag),
            loss_bound,
            fill != "zero" and _choice(fill, "fill", "zero", "keep"),
            stop != "patient" and _choice(stop, "stop", "patient", "eager"),
            0 if deadline is None else arguments.nanoseconds(deadline, "deadline"),
            0 if timeout is None else arguments.nanoseconds(timeout, "timeout"),
            dtype or "",
        )
        return Operation(operation, "recv", from_, tag, self)

    def poll_cq(self, max_completions: int = 64) -> list[Completion]:
        """Take up to ``max_completions`` finished operations that nobody waits for, oldest first. Never blocks.

        Failed operations are among them: see ``Completion.failed`` and ``Completion.raise_if_failed``.
        """
        return [completion_of(self, native) for native in self._engine.poll(max_completions)]

    def wait(self, op: Operation, timeout: float | None = None) -> Completion:
        """Block until ``op`` is done; other Python threads run meanwhile.

        Raises the TransferError of a failed operation, WaitTimeoutError if ``timeout`` seconds passed first (the
        operation goes on), UnknownOperationError if its completion was taken before, TypeError if ``op`` is none.
        """
        if not isinstance(op, Operation):
            raise TypeError(
                f"wait() takes the Operation that a post_* function returned, not {type(op).__name__}; all_reduce, "
                "all_to_all and gather have waited already"
            )
        if op._watch is not None:
            native = op._watch.wait(op, timeout)
        else:
            native = self._engine.wait(op._id, -1 if timeout is None else max(round(timeout * 1e9), 0))
            if native is not None and op._watch is not None:
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

    def cancel(self, op: Operation) -> None:
        """Ask for ``op`` to be given up. It still completes: "cancelled", or as it ended before."""
        self._engine.cancel(op.id)

    def counters(self) -> dict[str, int]:
        """Everything the endpoint, the datapath and the control connections count, by name; at rank 0 also what its
        rendezvous counted. docs/security.md says which of them an operator should watch."""
        return {**self._engine.counters(), **self._rendezvous_counts}

    def segment_grid(self, tensor: Any, *, to: int, layer: int = 0, layers: int = 1) -> priority.SegmentGrid:
        """How ``tensor`` would be cut into segments on its way to rank ``to``."""
        return self._grid(_core.tensor_info(tensor), to, layer, layers)

    def rate_gbps(self, peer: int) -> float:
        """What the rate controller now allows towards ``peer``, in Gbit/s."""
        return self._engine.rate_bits_per_second(peer) / 1e9

    def paths(self, peer: int) -> tuple[paths_module.PathStatus, ...]:
        """What is known of each path to ``peer``, path 0 first; what was sent over it by all its users is counted too.

        Raises UnknownPeerError.
        """
        return tuple(paths_module.PathStatus.of(native) for native in self._engine.paths(peer))

    def is_peer_up(self, peer: int) -> bool:
        """Whether ``peer`` is connected and neither said goodbye nor failed."""
        return self._engine.is_peer_up(peer)

    def peer_failure(self, peer: int) -> str | None:
        """Why ``peer`` failed (it died, fell silent, ...); None while it is well, and after its goodbye."""
        return self._engine.peer_failure(peer) or None

    def close(self) -> None:
        """Say goodbye to all peers and give every tensor back; what is under way fails. Harmless when repeated."""
        _open_contexts.discard(self)
        self._engine.close()
        if self._callbacks is not None:
            self._callbacks.join()

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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

    def _segment_tags(
        self, tensor: Any, prio_func: priority.PriorityFunction, grid: priority.SegmentGrid, operation: str
    ) -> Any:
        try:
            return priority.tag_bits(prio_func(priority.flat(tensor, grid.dtype, grid.elements), grid), grid)
        except InvalidBufferError as error:
            raise InvalidBufferError(
                f"rank {self.rank}: {operation} was refused: priority function: {error} (tensor of {grid.elements} "
                f"{grid.dtype})"
            ) from None


def _warn_of_small_buffer(granted: int, wanted: int) -> None:
    """Once per process: the limit is the machine's."""
    global _warned_of_small_buffer
    if granted >= wanted or _warned_of_small_buffer:
        return
    _warned_of_small_buffer = True
    warnings.warn(
        f"the kernel granted a receive buffer of {granted} of {wanted} bytes: bursts from several peers "
        f"will be lost and sent again. Raise the limit: sudo sysctl -w net.core.rmem_max={wanted} "
        f"net.core.wmem_max={wanted}",
        RuntimeWarning,
        stacklevel=3,
    )


def _tag(tag: int) -> int:
    # The upper half is the push-pull's own.
    if not 0 <= tag < 2**63:
        raise ConfigError(f"tag is {tag}; tags are integers in [0, 2**63)")
    return tag


def _choice(value: str, name: str, off: str, on: str) -> bool:
    if value not in (off, on):
        raise ConfigError(f"{name} is {value!r}; give {off!r} or {on!r}")
    return value == on


@atexit.register
def _close_all() -> None:
    # A daemon thread that comes back from the native library while the interpreter ends would be killed in the middle
    # of it, and the peers would hear no goodbye.
    for context in list(_open_contexts):
        context.close()
