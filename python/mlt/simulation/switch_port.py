"""A policy's queues in the project's own network simulator (``src/sim``), with the same loads as the queue model.

Absent on purpose: endpoints. The load is fixed and does not react to losses, as in the queue model.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlt import _core
from mlt.switch_configs.queue_simulation import ClassParameters, Measured

# NICs so fast that a burst arrives at once, as in the model.
AT_ONCE = 1000.0


def simulate(
    classes: Sequence[ClassParameters],
    *,
    packets: int,
    seed: int,
    burst: int = 1,
    senders: int = 1,
    packet_bytes: int = 1500,
    nic_speed: float = AT_ONCE,
) -> tuple[Measured, ...]:
    """Fraction lost of each class, as ``queue_simulation.simulate`` measures it.

    Args:
        burst: packets of one class that all senders together send at one instant.
        senders: hosts that share a burst.
        nic_speed: rate of a host's NIC as a multiple of the port's; 1 is a fabric of equal links.
    """
    rate = 12.5e9
    found = _core.simulate_port(
        classes=[
            (entry.threshold * packet_bytes, entry.limit * packet_bytes, entry.load, entry.small_ratio)
            for entry in classes
        ],
        packets=packets,
        burst_packets=burst,
        senders=senders,
        packet_bytes=packet_bytes,
        port_rate=rate,
        nic_rate=rate * nic_speed,
        seed=seed,
    )
    return tuple(
        Measured(small_lost / max(1, small), large_lost / max(1, large), small + large)
        for small, small_lost, large, large_lost, _ in found
    )
