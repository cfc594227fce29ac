"""Integral maximum flow between two nodes of a small network, by scipy, behind one typed function."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


def maximum_flow(
    tails: IntArray, heads: IntArray, capacity: IntArray, *, nodes: int, source: int, sink: int
) -> tuple[int, IntArray]:
    """Value and flow per arc. Arcs must be distinct pairs; capacities are below 2^31."""
    # scipy has no types; importing it by name keeps the package strictly typed with or without stubs for it. It is an
    # extra, without which commands still show their help.
    sparse: Any = import_module("scipy.sparse")
    csgraph: Any = import_module("scipy.sparse.csgraph")
    network = sparse.csr_array((capacity.astype(np.int32), (tails, heads)), shape=(nodes, nodes))
    result = csgraph.maximum_flow(network, source, sink)
    flow = result.flow.tocsr()
    return int(result.flow_value), np.asarray(flow[tails, heads], dtype=np.int64).ravel()
