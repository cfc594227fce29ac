"""PSNet's addresses: 10.mid.swid.x (section 3.2).

=================  ===============  ==========================================================
node               address          numbers
=================  ===============  ==========================================================
ToR switch         10.mid.swid.0    mid in 1..H, swid in 1..R
SuperNode switch   10.mid.(R+1).0
parameter server   10.mid.0.psid    psid in 1..P'
worker             10.mid.swid.wid  wid in 1..ceil(W'/R); swid is its home ToR, not the ToR of
                                    its circuit, so a new circuit never changes an address
=================  ===============  ==========================================================

The paper lets wid range to W'/B with B undefined. B is the number of ToRs, R, since workers are distributed equally
over them. A parameter server has R NICs, which share this one address. The circuit switch has no address, because it is
transparent to packets.
"""

from __future__ import annotations

from ipaddress import IPv4Address

from mlt.planners.psnet.psnet import PSNet, supernode_name, tor_name


def supernode_address(network: PSNet, mid: int) -> IPv4Address:
    """Address of a module's SuperNode switch."""
    return _address(mid, network.tors + 1, 0)


def address_table(network: PSNet) -> dict[str, IPv4Address]:
    """Every addressed node's name and address, module by module."""
    table: dict[str, IPv4Address] = {}
    for mid in network.mids:
        module = network.module(mid)
        table.update({tor_name(mid, t): _address(mid, t + 1, 0) for t in range(network.tors)})
        table[supernode_name(mid)] = supernode_address(network, mid)
        table.update({server: _address(mid, 0, s + 1) for s, server in enumerate(network.servers(mid))})
        for w, worker in enumerate(network.workers(mid)):
            table[worker] = _address(mid, *module.home_of(w))
    return table


def _address(mid: int, swid: int, last: int) -> IPv4Address:
    return IPv4Address(bytes((10, mid, swid, last)))
