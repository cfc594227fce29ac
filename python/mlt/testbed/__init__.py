"""Emulated hosts, switches and a lossy network on one host: network namespaces, real queues, injected loss.

``Testbed`` is the context manager; ``mlt testbed`` the command. Linux only; needs pyroute2 (extra ``testbed``).
"""

from __future__ import annotations

from mlt.testbed.bed import Testbed
from mlt.testbed.delay_line import DelayCounters
from mlt.testbed.errors import BadTopologyError, MissingError, TestbedError
from mlt.testbed.impairments import LossCounters
from mlt.testbed.switch_port import PortState, QueueCounters
from mlt.testbed.topology import Topology, json_schema, load, make

__all__ = [
    "BadTopologyError",
    "DelayCounters",
    "LossCounters",
    "MissingError",
    "PortState",
    "QueueCounters",
    "Testbed",
    "TestbedError",
    "Topology",
    "json_schema",
    "load",
    "make",
]
