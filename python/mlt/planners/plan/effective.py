"""The network that packets use: circuit switches are replaced by their circuits.

A circuit switch does not forward packets. Under given circuits, each circuit is a plain cable between its two hosts or
switches; ports of the circuit switch without a circuit are unconnected.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlt.planners._shared.documents import InputError, Problem
from mlt.planners.cluster import Cluster, Link
from mlt.planners.plan import Circuit


def has_circuit_switches(cluster: Cluster) -> bool:
    """Whether circuits determine some links."""
    return any(switch.kind == "circuit" for switch in cluster.switches)


def effective_cluster(cluster: Cluster, circuits: Sequence[Circuit]) -> Cluster:
    """``cluster`` with every circuit switch replaced by its ``circuits``; the same object when it has none.

    A circuit runs at the slower of its two cables. Far ends keep their ports, so port-to-pipeline maps still hold.

    Raises:
        InputError: a circuit uses a port of its circuit switch that has no cable.
    """
    if not has_circuit_switches(cluster):
        return cluster
    gone = {switch.name for switch in cluster.switches if switch.kind == "circuit"}
    cable = {(name, cluster.port(link, name)): link for name in gone for link in cluster.links_of[name]}
    links = [link for link in cluster.links if link.a not in gone and link.b not in gone]
    for index, circuit in enumerate(circuits):
        if circuit.switch not in gone:
            continue
        ends = [(circuit.switch, port) for port in (circuit.a_port, circuit.b_port) if port is not None]
        found = [cable[end] for end in ends if end in cable]
        if len(found) != 2:
            message = f"{circuit.a!r} to {circuit.b!r}: expected two cabled ports of circuit switch {circuit.switch!r}"
            raise InputError([Problem(where=("circuits", index), message=message)])
        (a, a_port), (b, b_port) = (
            (far, cluster.port(link, far)) for link in found for far in (cluster.peer(link, circuit.switch),)
        )
        rate, delay = min(link.bandwidth for link in found), sum(link.delay for link in found)
        links.append(Link(a=a, b=b, bandwidth=rate, delay=delay, a_port=a_port, b_port=b_port))
    return Cluster(
        name=cluster.name,
        hosts=cluster.hosts,
        switches=tuple(switch for switch in cluster.switches if switch.name not in gone),
        links=tuple(links),
        jobs=cluster.jobs,
    )


def without_links(cluster: Cluster) -> Cluster:
    """Hosts and jobs only: the known part of a network whose circuits are unknown."""
    return Cluster(name=cluster.name, hosts=cluster.hosts, jobs=cluster.jobs)
