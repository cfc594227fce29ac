"""The independent endpoint and the engine, connected over loopback, for tests."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from independent_endpoint import IndependentEndpoint, job_id

from mlt import _core

JOB = job_id("two implementations")
FLOAT32 = 7
SECONDS = 10**9
SECRET = b"two implementations, one secret"


@contextlib.contextmanager
def connected(
    data_dscp: Sequence[int] = (), control_dscp: int = 31
) -> Iterator[tuple[IndependentEndpoint, _core.Engine]]:
    """The independent endpoint as rank 0, the engine as rank 1, with its own code points or these."""
    peer = IndependentEndpoint(job=JOB, secret=SECRET)
    options = _core.Options(rank=1, ranks=2, job=JOB, line_rate_bits_per_second=1e9, spin_us=0, secret=SECRET)
    options.operation_timeout_ns, options.peer_timeout_ns = 20 * SECONDS, 30 * SECONDS
    options.data_dscp, options.control_dscp = list(data_dscp), control_dscp
    engine = _core.Engine(options)
    accepting = threading.Thread(target=peer.accept)
    accepting.start()
    try:
        engine.connect([(0, "127.0.0.1", peer.control_port)], 5 * SECONDS)
        accepting.join()
        yield peer, engine
    finally:
        peer.close()
        engine.close()
