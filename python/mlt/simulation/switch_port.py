"""A policy's queues in the project's own network simulator (``src/sim``): the same loads, its cards, cables and ports.

Absent on purpose: endpoints. The load is given and nothing answers a loss, as in the model that it is compared with.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlt import _core
from mlt.switch_configs.queue_simulation import ClassParameters, Measured

# Cards so fast that a burst is there at once, as in the model.
AT_ONCE = 1000.0


def simulate(
    classes: Sequence[ClassParameters],
    *,
    packets: int,
    seed: int,
    burst: int = 1,
    senders: int = 1,
    packet_bytes: int = 1500,
    card_speed: float = AT_ONCE,
) -> tuple[Measured, ...]:
    """Fractions lost of each class, as ``queue_simulation.simulate`` measures them.

    Args:
        burst: packets of one class that the senders together send at one instant.
        senders: hosts among which a burst is divided.
        card_speed: of a host's card, as a multiple of the port's; 1 is a fabric of equal links.
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
        card_rate=rate * card_speed,
        seed=seed,
    )
    return tuple(
        Measured(small_lost / max(1, small), large_lost / max(1, large), small + large)
        for small, small_lost, large, large_lost, _ in found
    )
